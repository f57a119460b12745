"""The page in a real browser: headless Chromium, driven by Selenium."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from patience import PATIENCE
from shown import OnePartitionDown, list_batches, read_batches

from forebay.buffer.base.clock import SystemClock
from forebay.buffer.consumer import Consumer
from forebay.buffer.either.holds import hold
from forebay.buffer.eventlog import AuditTrail, open_event_log
from forebay.buffer.format.model import Metadata, NewBatch
from forebay.buffer.manifest import Head, Manifest, Queue
from forebay.buffer.producer import Producer
from forebay.buffer.store import ObjectStore
from forebay.buffer.store.memory import MemoryStore
from forebay.buffer.topic import Topic, create_topic
from forebay.testing import Fault, FaultyStore
from forebay.ui import Dashboard

CLOCK = SystemClock()


class Browser:
    """A page as a person meets it."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, url: str) -> None:
        self.driver.get_log("browser")
        self.driver.get(url)

    def run(self, script: str, *given: Any) -> Any:
        return self.driver.execute_script(f"return {script}", *given)

    def text(self, selector: str = "body") -> str:
        return str(self.run("document.querySelector(arguments[0])?.innerText ?? ''", selector))

    def rows(self, selector: str) -> list[list[str]]:
        script = "[...document.querySelectorAll(arguments[0])].map(r => [...r.children].map(c => c.innerText.trim()))"
        return [list(row) for row in self.run(script, f"{selector} tbody tr")]

    def wait(self, until: Callable[[], Any]) -> Any:
        deadline = CLOCK.monotonic() + PATIENCE
        while not (found := until()):
            assert CLOCK.monotonic() < deadline, f"it never came; the page says:\n{self.text()}"
            CLOCK.sleep(0.02)
        return found

    def wait_for(self, condition: str) -> None:
        self.wait(lambda: self.run("document.body.dataset.condition") == condition)

    def errors(self) -> list[str]:
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]

    def size(self, width: int, height: int = 900) -> None:
        emulate = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", emulate)

    def prefer(self, scheme: str) -> None:
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    try:
        from selenium import webdriver
    except ImportError:
        pytest.skip("no chromium: Selenium, which drives it, is not installed")
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("no chromium: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in ("headless=new", "no-sandbox", "disable-dev-shm-usage", "disable-gpu", "no-proxy-server"):
        options.add_argument(f"--{argument}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with webdriver.Chrome(options, webdriver.ChromeService(driver)) as started:
        yield Browser(started)


@pytest.fixture(autouse=True)
def _desktop(browser: Browser) -> None:
    browser.size(1280)
    browser.prefer("light")


@pytest.fixture
def store(request: pytest.FixtureRequest) -> MemoryStore:
    return MemoryStore(f"memory://page-{request.node.name.translate({91: '-', 93: ''})}")


@pytest.fixture
def show(browser: Browser) -> Iterator[Callable[..., Dashboard]]:
    """Open the page of a buffer; what is on it afterwards has to be free of errors."""
    opened: list[Dashboard] = []

    def show(store: ObjectStore, **settings: Any) -> Dashboard:
        opened.append(Dashboard(store, port=0, interval=0.1, **settings).start())
        browser.open(opened[-1].url)
        return opened[-1]

    yield show
    assert browser.errors() == []
    browser.driver.get("about:blank")
    for dashboard in opened:
        dashboard.close()


Show = Callable[..., Dashboard]


def test_busy_buffer_is_shown_with_its_figures(browser: Browser, show: Show, store: MemoryStore) -> None:
    list_batches(store, 2000, CLOCK, apart=0.01)
    read_batches(store, 1500, "audit")
    with Consumer(store, group="etl"), hold(store, from_=1200, purpose="backfill"):
        show(store)
        browser.wait_for("live")
        assert browser.text("#url") == store.url
        assert "Depth\n2Kbatches\n20K entries · 195 KiB" in browser.text("#tiles")
        audit, etl = browser.rows("#readers")
        assert audit[:6] == ["audit", "idle", "1,499", "500 batches", "5K", "49 KiB"]
        assert etl[:6] == ["etl", "reading", "\u2013", "2,000 batches", "20K", "195 KiB"]
        newest = browser.rows("#newest")
        assert [row[0] for row in newest[:2]] == ["1,999", "1,998"]
        assert newest[0][2:7] == ["10", "100 B", "400 B", "4.0\u00d7", "19,990"]
        assert "Held: backfill\nfrom batch 1,200" in browser.text("#collector")


def test_figures_follow_what_happens(browser: Browser, show: Show, store: MemoryStore) -> None:
    list_batches(store, 3, CLOCK)
    show(store)
    browser.wait(lambda: browser.text(".tile .figure").startswith("3"))
    list_batches(store, 4, CLOCK)
    read_batches(store, 2, "etl")
    browser.wait(lambda: browser.text(".tile .figure").startswith("7"))
    browser.wait(lambda: [row[2:4] for row in browser.rows("#readers")] == [["1", "5 batches"]])
    before = int(browser.run("document.body.dataset.points"))
    browser.wait(lambda: int(browser.run("document.body.dataset.points")) > before)
    assert browser.run("document.querySelectorAll('#lag .line').length") == 1


def test_empty_buffer_says_so(browser: Browser, show: Show, store: MemoryStore) -> None:
    store.create("manifest", Head(buffer_id="b" * 32).to_bytes())
    show(store)
    browser.wait_for("live")
    assert "This buffer is empty." in browser.text("#alerts")
    assert f"forebay produce {store.url}" in browser.text("#alerts")
    assert "Nobody has opened this buffer for reading." in browser.text("#readers")
    assert "No batch is listed now." in browser.text("#newest")


def test_missing_buffer_says_what_to_do_and_is_shown_once_it_is_there(
    browser: Browser, show: Show, store: MemoryStore
) -> None:
    show(store)
    browser.wait_for("missing")
    assert "There is no buffer here yet" in browser.text("#vacant")
    assert f"echo hello | forebay produce {store.url}" in browser.text("#vacant")
    assert not browser.run("document.querySelector('#content').checkVisibility()")
    list_batches(store, 3, CLOCK)
    browser.wait_for("live")
    assert not browser.run("document.querySelector('#vacant').checkVisibility()")


class Breaking(FaultyStore):
    """A store that can be broken and mended."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.broken = False
        self._choose = lambda _number: Fault.FAIL if self.broken else None


def test_broken_store_leaves_the_last_figures_marked_as_stale(browser: Browser, show: Show, store: MemoryStore) -> None:
    list_batches(store, 3, CLOCK)
    breaking = Breaking(store)
    show(breaking)
    browser.wait_for("live")
    breaking.broken = True
    browser.wait_for("stale")
    alert = browser.text("#alerts")
    assert "Unavailable." in alert
    assert "the request never reaches the store" in alert
    assert "The page keeps trying" in alert
    assert "The page shows what was seen at" in alert
    assert browser.text(".tile .figure").startswith("3")
    assert "Stale, seen" in browser.text("#pulse")
    assert browser.driver.title == f"Stale: {store.url} \u2013 forebay"
    breaking.broken = False
    browser.wait_for("live")
    assert browser.text("#alerts") == ""


def test_store_that_cannot_be_read_at_all_is_named(browser: Browser, show: Show, store: MemoryStore) -> None:
    breaking = Breaking(store)
    breaking.broken = True
    show(breaking)
    browser.wait_for("broken")
    assert "The store cannot be read: Unavailable" in browser.text("#vacant")


def test_halt_fence_sweep_and_dead_letters_are_shown_as_text(browser: Browser, show: Show, store: MemoryStore) -> None:
    list_batches(store, 3, CLOCK)
    read_batches(store, 1, "etl")
    hostile = "<img src=x onerror=document.title='run'>"
    with open_event_log(f"{store.url}-log") as log:
        trail = AuditTrail(log)
        trail.record("delete.started", store.url, objects=["data/a"])
        trail.record("delete.finished", store.url, objects=["data/a"], failed={})
        trail.record("dead_letter", store.url, group="etl", sequence=1, error=hostile)
        trail.record("runtime.halted", store.url, group="etl", error="Halted: batch 2 cannot be used")
        trail.record("runtime.fenced", store.url, group="audit", error="Fenced: another consumer took over")
        show(store, events=log, dead_letters=MemoryStore(f"{store.url}-letters"))
        browser.wait_for("live")
        alerts = browser.text("#alerts")
        assert "etl halted at" in alerts
        assert "batch 2 cannot be used" in alerts
        assert "audit was fenced at" in alerts
        assert [row[:2] for row in browser.rows("#readers")] == [["etl", "halted"]]
        assert hostile in browser.text("#events")
        assert browser.run("document.querySelectorAll('#events img').length") == 0
        assert "It deleted\n1 object" in browser.text("#collector")
        assert "Every batch could be committed." in browser.text("#letters")
        trail.record("runtime.resumed", store.url, group="etl", after=0)
        browser.wait(lambda: "etl halted" not in browser.text("#alerts"))


def test_topic_has_a_row_for_each_partition_and_a_total(browser: Browser, show: Show, store: MemoryStore) -> None:
    create_topic(store.url, 3)
    topic = Topic(store)
    topic.register_group("etl", "earliest")
    for number in range(3):
        list_batches(topic.partition(number), 10 * (number + 1), CLOCK)
    show(store)
    browser.wait_for("live")
    assert browser.text("#kind") == "topic of 3 partitions"
    rows = browser.rows("#parts")
    assert [row[:3] for row in rows] == [
        ["p-00000", "10", "100"],
        ["p-00001", "20", "200"],
        ["p-00002", "30", "300"],
        ["all", "60", "600"],
    ]
    assert rows[-1][6].startswith("etl, 60 batches")


def test_partition_that_cannot_be_read_is_marked_among_the_others(
    browser: Browser, show: Show, store: MemoryStore
) -> None:
    create_topic(f"{store.url}/topic", 2)
    topic = OnePartitionDown(store)
    for number in range(2):
        list_batches(Topic(topic).partition(number), 10, CLOCK)
    show(topic)
    browser.wait_for("live")
    topic.down = True
    browser.wait(lambda: "1 partition of 2 could not be read." in browser.text("#alerts"))
    assert "could not connect" in browser.text("#alerts")
    up, down, _total = browser.rows("#parts")
    assert (up[1], up[6]) == ("10", "nobody reads")
    assert (down[1], down[6]) == ("10", "Unavailable"), "what was seen of it stays"


def test_version_1_is_counted_in_batches(browser: Browser, show: Show, store: MemoryStore) -> None:
    store.create("manifest", Manifest.empty("new").to_bytes())
    Queue(store).append([NewBatch(f"data/{n}", (Metadata(0, CLOCK.now_ms(), b""),)) for n in range(3)])
    read_batches(store, 1, None)
    show(store)
    browser.wait_for("live")
    assert "Depth\n2batches" in browser.text("#tiles")
    assert [row[:4] for row in browser.rows("#readers")] == [["unnamed consumer", "epoch 1", "0", "2 batches"]]
    assert "batches not acknowledged" in browser.text("#lag-unit")
    assert "version 1 does not count them" in browser.text("#tiles")


def test_page_that_loses_its_server_says_so_and_goes_on_when_it_is_back(
    browser: Browser, show: Show, store: MemoryStore
) -> None:
    list_batches(store, 3, CLOCK)
    dashboard = show(store)
    browser.wait_for("live")
    dashboard._server.state = lambda _after: {}["nobody answers"]
    browser.wait_for("lost")
    assert "Is forebay ui still running?" in browser.text("#alerts")
    assert browser.text(".tile .figure").startswith("3"), "what was seen stays"
    list_batches(store, 1, CLOCK)
    dashboard._server.state = dashboard.sampler.state
    browser.wait(lambda: browser.text(".tile .figure").startswith("4"))
    browser.wait_for("live")
    browser.errors()  # the browser's own, of the requests that nobody answered


def test_page_takes_the_history_of_a_server_that_was_started_again(
    browser: Browser, show: Show, store: MemoryStore
) -> None:
    list_batches(store, 3, CLOCK)
    first = show(store)
    browser.wait(lambda: int(browser.run("document.body.dataset.points")) >= 5)
    again = Dashboard(store, port=0)
    again.sampler.sample()
    first._server.state = again.sampler.state
    browser.wait(lambda: browser.run("document.body.dataset.points") == "1")
    again.close()


def test_token_leaves_the_address_and_opens_the_page(browser: Browser, show: Show, store: MemoryStore) -> None:
    list_batches(store, 3, CLOCK)
    dashboard = show(store, token="correct-horse-battery")
    assert "Open this page by the address with ?token=" in browser.text()
    browser.errors()  # it was a 401
    browser.open(f"{dashboard.url}?token=correct-horse-battery")
    browser.wait_for("live")
    assert browser.run("location.href") == dashboard.url


@pytest.mark.parametrize("width", [1280, 768, 390])
def test_page_fits_its_window_with_every_figure_on_it(
    browser: Browser, show: Show, store: MemoryStore, width: int
) -> None:
    create_topic(store.url, 2)
    topic = Topic(store)
    for number in range(2):
        list_batches(topic.partition(number), 500, CLOCK, apart=0.1)
        for group in ("a-group-with-a-rather-long-name-for-a-column", "etl", "audit"):
            read_batches(topic.partition(number), 100, group)
    browser.size(width)
    show(store)
    browser.wait_for("live")
    assert browser.run("document.scrollingElement.scrollWidth") <= width
    boxes = "[...document.querySelectorAll('.tile, .card')]"
    assert browser.run(f"{boxes}.filter(c => c.scrollWidth > c.clientWidth + 1).map(c => c.innerText)") == []


def test_scheme_is_the_viewers(browser: Browser, show: Show, store: MemoryStore) -> None:
    list_batches(store, 3, CLOCK)
    show(store)
    grounds = []
    for scheme in ("light", "dark"):
        browser.prefer(scheme)
        grounds.append(browser.run("getComputedStyle(document.body).backgroundColor"))
    assert grounds == ["rgb(243, 246, 248)", "rgb(11, 19, 25)"]


def test_page_needs_nothing_from_anywhere_else(browser: Browser, show: Show, store: MemoryStore) -> None:
    list_batches(store, 3, CLOCK)
    dashboard = show(store)
    browser.wait_for("live")
    loaded = browser.run("performance.getEntriesByType('resource').map(r => r.name)")
    assert {f"{dashboard.url}{name}" for name in ("page.js", "chart.js", "format.js", "page.css")} <= set(loaded)
    assert all(name.startswith(dashboard.url) for name in loaded)


def test_charts_can_be_read_without_a_mouse_and_without_seeing(
    browser: Browser, show: Show, store: MemoryStore
) -> None:
    from selenium.webdriver import ActionChains, Keys

    list_batches(store, 3, CLOCK)
    read_batches(store, 1, "etl")
    show(store)
    browser.wait(lambda: int(browser.run("document.body.dataset.points")) >= 3)
    labels = browser.run("[...document.querySelectorAll('.chart svg')].map(s => s.getAttribute('aria-label'))")
    assert len(labels) == 4
    assert "Lag of each reader: etl 20" in labels[1]
    browser.run("document.querySelector('#lag svg').focus()")
    ActionChains(browser.driver).send_keys(Keys.ARROW_LEFT).perform()
    assert "etl" in browser.text("#lag .tip")
    ActionChains(browser.driver).send_keys(Keys.ESCAPE).perform()
    assert browser.run("document.querySelector('#lag .tip').hidden")


def test_lag_is_shown_by_count_or_by_age(browser: Browser, show: Show, store: MemoryStore) -> None:
    list_batches(store, 100, CLOCK, apart=60.0)
    Consumer(store, group="etl").close()
    show(store)
    browser.wait_for("live")
    assert "etl 1K" in browser.text("#lag-legend")
    browser.run("document.querySelector('#lag-by-age').click()")
    assert "etl 1 h 39 min" in browser.text("#lag-legend")
    pressed = "[...document.querySelectorAll('.switch button')].map(b => b.getAttribute('aria-pressed'))"
    assert browser.run(pressed) == ["false", "true"]


def test_writes_are_never_sent(browser: Browser, show: Show, store: MemoryStore) -> None:
    list_batches(store, 300, CLOCK)
    read_batches(store, 100, "etl")
    before = {found.key: bytes(store.get(found.key).data) for found in store.list()}
    show(store)
    browser.wait(lambda: int(browser.run("document.body.dataset.points")) >= 3)
    assert {found.key: bytes(store.get(found.key).data) for found in store.list()} == before
    assert Queue(store).read().epoch == 0
    assert browser.rows("#readers")[0][:2] == ["etl", "idle"]


def test_typed_buffer_is_shown_with_its_schema_and_rows(browser: Browser, show: Show, store: MemoryStore) -> None:
    schema = pa.schema([pa.field("user", pa.int64(), nullable=False), pa.field("<b>", pa.list_(pa.string()))])
    with Producer(store, schema=schema) as producer:
        producer.produce([{"user": 1}, {"user": 2}])
    show(store)
    browser.wait_for("live")
    assert browser.rows("#schema") == [["user", "int64 not null"], ["<b>", "list<string>"]]
    assert "version 0, 2 columns" in browser.text("#schema-title")
    assert "2 rows" in browser.text("#tiles")
    assert "Rows" in browser.text("#newest thead")
    assert "ENTRIES" not in browser.text("main").upper()


def test_buffer_of_bytes_has_no_schema_card(browser: Browser, show: Show, store: MemoryStore) -> None:
    list_batches(store, 1, CLOCK)
    show(store)
    browser.wait_for("live")
    assert browser.run("document.getElementById('schema-card').hidden") is True
    assert "10 entries" in browser.text("#tiles")
