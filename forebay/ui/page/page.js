import { Chart, clock } from "./chart.js";
import { count, exact, NOT_KNOWN, shortSpan, size, some, span } from "./format.js";

const KEPT_POINTS = 900;
const COLOURS = 8;
const FENCE_SHOWN_MS = 600_000; // a fence is what happens when another takes over: worth a word, not a standing alarm
const UNNAMED = "unnamed consumer";

const at = (id) => document.getElementById(id);
const looks = new Map(); // a reader keeps its colour as long as the page is open
let points = [];
let state = null;
let lost = null; // why the last request did not come back
let ahead = 0; // of the server's clock before ours
let lagByAge = false;

function make(tag, look, ...children) {
  const node = document.createElement(tag);
  if (look) node.className = look;
  node.append(...children.map((child) => (child instanceof Node ? child : String(child))));
  return node;
}

const readerName = (name) => name || UNNAMED;
const now = () => Date.now() + ahead;
const ago = (ms) => (ms === null ? NOT_KNOWN : `${span(Math.max(0, now() - ms) / 1000)} ago`);

function lookOf(name) {
  if (!looks.has(name)) looks.set(name, looks.size < COLOURS ? `s${looks.size}` : "rest");
  return looks.get(name);
}

function fill(table, heads, rows, empty) {
  const head = make("tr", "", ...heads.map(([label, look]) => Object.assign(make("th", look ?? "", label), { scope: "col" })));
  const body = rows.length ? rows : [make("tr", "", Object.assign(make("td", "empty", empty), { colSpan: heads.length }))];
  table.replaceChildren(make("thead", "", head), make("tbody", "", ...body));
}

function row(heads, cells, look) {
  return make(
    "tr",
    look ?? "",
    ...cells.map((cell, i) => Object.assign(make(i ? "td" : "th", heads[i][1] ?? "", cell), i ? {} : { scope: "row" })),
  );
}

function list(target, pairs) {
  const nodes = pairs.flatMap(([term, value, look]) =>
    term === null ? [make("dd", "note", value)] : [make("dt", "", term), make("dd", look ?? "", value)],
  );
  target.replaceChildren(...nodes);
}

// What a look found, in words

/** 1 if entries are counted everywhere, 0 if only batches are: an index into the pairs that the server sends. */
function measure(seen) {
  const told = [seen.total.taken_in, ...seen.total.groups.map((group) => group.lag_entries)];
  return told.every((value) => value !== null && value !== undefined) ? 1 : 0;
}

/** An entry of a typed buffer is a row. */
const unitOf = (seen, by) => (by ? (seen.schema ? "rows" : "entries") : "batches");
const titled = (heads, seen) => heads.map(([label, look]) => [seen.schema ? label.replace("Entries", "Rows").replace("entry", "row") : label, look]);

function showTiles(seen, by) {
  const unit = unitOf(seen, by);
  const { total } = seen;
  const behind = [...total.groups].sort((a, b) => b.lag_batches - a.lag_batches)[0];
  const outs = total.groups.map((group) => [seen.out[group.name]?.[by] ?? null, group]).filter(([rate]) => rate !== null);
  const slowest = outs.sort((a, b) => a[0] - b[0])[0];
  const stored = [total.entries !== null && `${count(total.entries)} ${unitOf(seen, 1)}`, total.stored_bytes !== null && size(total.stored_bytes)];
  const late = behind && behind.lag_seconds > 60;
  const tiles = [
    ["Depth", count(total.batches), total.batches === 1 ? "batch" : "batches", stored.filter(Boolean).join(" · ")],
    ["In", count(seen.in[by] ?? (by ? total.entries_per_second : null)), `${unit}/s`, total.bytes_per_second === null ? "" : `${size(total.bytes_per_second)}/s stored`],
    ["Out", count(slowest?.[0]), `${unit}/s`, total.groups.length > 1 && slowest ? `the slowest: ${readerName(slowest[1].name)}` : ""],
    ["Furthest behind", count(behind && (by ? behind.lag_entries : behind.lag_batches)), behind ? unit : "", behind ? (behind.lag_batches ? `${readerName(behind.name)}, by ${span(behind.lag_seconds)}` : "everyone is caught up") : "nobody reads yet", late ? "behind" : ""],
    ["Oldest retained", total.batches ? span(total.age_seconds) : NOT_KNOWN, "", total.oldest_ms === null ? "" : `taken in at ${clock(total.oldest_ms)}`],
    ["Manifest writes", count(seen.writes_per_second), "per s", total.writes === null ? "version 1 does not count them" : `${exact(total.writes)} in all`],
  ];
  at("tiles").replaceChildren(
    ...tiles.map(([label, figure, unitText, more, look]) => {
      const lines = make("div", "figure", figure);
      if (unitText && figure !== NOT_KNOWN) lines.append(make("small", "", unitText));
      const detail = make("div", "more", more || " ");
      detail.title = more;
      return make("div", `tile ${look ?? ""}`, make("div", "label", label), lines, detail);
    }),
  );
}

function showLegend(target, series, format) {
  target.replaceChildren(
    ...series.map((one) => make("span", "", make("span", `swatch ${one.look}`), `${one.name} `, make("b", "", format(one.values.at(-1) ?? null)))),
  );
}

function showCharts(seen, by) {
  const unit = unitOf(seen, by);
  const times = points.map((point) => point.time_ms);
  const latest = points.at(-1)?.readers ?? {};
  const names = seen.total.groups.map((group) => group.name).filter((name) => name in latest);
  const gap = 3000 * state.interval + 3000;
  const of = (name, take) => points.map((point) => (point.readers[name] ? take(point.readers[name]) ?? null : null));
  const line = (name, take) => ({ name: readerName(name), look: lookOf(name), values: of(name, take) });

  const flow = [
    { name: "in", look: "water", area: true, values: points.map((point) => point.in[by]) },
    ...names.map((name) => line(name, (reader) => reader.out[by])),
  ];
  at("flow-unit").textContent = `${unit} per second, taken in and acknowledged`;
  showLegend(at("flow-legend"), flow, count);
  charts.flow.show(times, flow, { gap });

  const lag = names.map((name) => line(name, (reader) => (lagByAge ? reader.seconds : reader.lag[by])));
  at("lag-unit").textContent = lagByAge ? "age of the oldest unread" : `${unit} not acknowledged`;
  const format = lagByAge ? span : count;
  showLegend(at("lag-legend"), lag, format);
  charts.lag.show(times, lag, { gap, format, ofTime: lagByAge, scale: lagByAge ? shortSpan : count });

  charts.depth.show(times, [{ name: "depth", look: "water", area: true, values: points.map((point) => point.depth[0]) }], { gap });
  charts.writes.show(times, [{ name: "writes", look: "water", area: true, values: points.map((point) => point.writes) }], { gap });
}

const READERS = [["Reader"], ["State"], ["Acknowledged", "number wide"], ["Behind", "number"], ["Entries", "number wide"], ["Bytes", "number wide"], ["Oldest unread", "number"], ["Read so far", "progress wide"]];

function readerState(seen, group) {
  const halted = seen.trail?.stopped?.find((event) => event.group === group.name && event.kind === "runtime.halted");
  if (halted) return make("span", "chip critical", "halted");
  const owner = group.owner ? ` ${group.owner.host}/${group.owner.pid}, since ${new Date(group.owner.since_ms).toLocaleString()}.` : "";
  const chip = group.alive === null ? make("span", "chip", `epoch ${group.epoch}`) : group.alive ? make("span", "chip good", "reading") : make("span", "chip", "idle");
  if (group.alive === null) chip.title = owner && `Last opened by${owner}`;
  else chip.title = group.alive ? `A consumer owns it${owner ? `:${owner}` : "."} A consumer that was killed counts as the owner until the next one claims it.` : "No consumer owns it.";
  return chip;
}

function showReaders(seen) {
  const rows = seen.total.groups.map((group) => {
    const read = seen.total.batches ? 1 - group.lag_batches / seen.total.batches : 1;
    const bar = make("div", `bar ${lookOf(group.name)}`, make("i"));
    bar.firstChild.style.width = `${100 * read}%`;
    bar.setAttribute("role", "img");
    bar.setAttribute("aria-label", `${Math.floor(100 * read)} % of the retained batches are acknowledged`);
    const name = make("span", "", make("span", `swatch ${lookOf(group.name)}`), readerName(group.name));
    const lag = group.lag_batches ? span(group.lag_seconds) : "caught up";
    return row(READERS, [name, readerState(seen, group), exact(group.acked), group.lag_batches ? some(group.lag_batches, "batch", "batches") : "0", count(group.lag_entries), size(group.lag_bytes), lag, bar]);
  });
  fill(at("readers"), titled(READERS, seen), rows, "Nobody has opened this buffer for reading. A group appears here with its first consumer.");
}

const PARTS = [["Partition"], ["Depth", "number"], ["Entries", "number"], ["Stored", "number wide"], ["In", "number"], ["Oldest", "number wide"], ["Furthest behind"], ["Writes", "number wide"]];

function showParts(seen) {
  at("parts-card").hidden = !seen.is_topic;
  if (!seen.is_topic) return;
  const perSecond = (stats) => (stats.entries_per_second === null ? NOT_KNOWN : `${count(stats.entries_per_second)}/s`);
  const furthest = (groups) => {
    const group = [...groups].sort((a, b) => b.lag_batches - a.lag_batches)[0];
    if (!group) return "nobody reads";
    return group.lag_batches ? `${readerName(group.name)}, ${some(group.lag_batches, "batch", "batches")}, ${span(group.lag_seconds)}` : "caught up";
  };
  const cells = (stats, groups) => [exact(stats.batches), count(stats.entries), size(stats.stored_bytes), perSecond(stats), span(stats.age_seconds), furthest(groups), exact(stats.writes)];
  const rows = seen.parts.map((part) => {
    const name = part.url.slice(part.url.lastIndexOf("/") + 1);
    const readers = part.stats && [...part.stats.groups, ...(part.stats.unnamed ? [part.stats.unnamed] : [])];
    const shown = part.stats ? cells(part.stats, readers) : Array(7).fill(NOT_KNOWN);
    if (part.error) shown[5] = make("span", "chip critical", part.error.kind);
    return row(PARTS, [make("span", "mono", name), ...shown]);
  });
  rows.push(row(PARTS, ["all", ...cells(seen.total, seen.total.groups)], "total"));
  fill(at("parts"), titled(PARTS, seen), rows, "");
}

const SCHEMA = [["Column"], ["Type"]];

function showSchema(seen) {
  const { schema } = seen;
  at("schema-card").hidden = !schema;
  if (!schema) return;
  at("schema-version").textContent = schema.error ? "" : `version ${schema.version}, ${some(schema.count, "column", "columns")}`;
  const rows = (schema.columns ?? []).map(([name, type]) => row(SCHEMA, [make("span", "mono", name), make("span", "mono", type)]));
  if (schema.count > rows.length) rows.push(row(SCHEMA, [`${exact(schema.count - rows.length)} more`, `forebay schema show ${state.url}`]));
  fill(at("schema"), SCHEMA, rows, schema.error ? `${schema.error.kind}: ${schema.error.message}` : "");
}

function showNewest(seen) {
  const heads = [["Batch"], ["Taken in", "number"], ["Entries", "number"], ["Stored", "number"], ["Raw", "number wide"], ["Ratio", "number wide"], ["First entry", "number wide"], ["Object", "wide"]];
  if (seen.is_topic) heads.splice(1, 0, ["Partition", "number"]);
  const rows = seen.newest.map((batch) => {
    const object = make("div", "object mono", batch.location.slice(batch.location.lastIndexOf("/") + 1).replace(/\.(batch|parquet)$/, ""));
    object.title = batch.location;
    const ratio = batch.stored_bytes ? `${(batch.raw_bytes / batch.stored_bytes).toFixed(1)}×` : NOT_KNOWN;
    const cells = [exact(batch.sequence), batch.time_ms === null ? NOT_KNOWN : clock(batch.time_ms), exact(batch.records), size(batch.stored_bytes), size(batch.raw_bytes), ratio, exact(batch.base_record), object];
    if (seen.is_topic) cells.splice(1, 0, batch.partition);
    return row(heads, cells);
  });
  fill(at("newest"), titled(heads, seen), rows, "No batch is listed now.");
}

function showManifest(seen) {
  const stats = seen.parts.map((part) => part.stats).filter(Boolean);
  const versions = [...new Set(stats.map((one) => one.version))].join(" and ");
  const perWrite = seen.in[0] && seen.writes_per_second ? (seen.in[0] / seen.writes_per_second).toFixed(1) : NOT_KNOWN;
  list(at("manifest"), [
    ["Version", versions || NOT_KNOWN],
    ...(stats.length === 1 ? [["Batches", stats[0].batches ? `${exact(stats[0].first_sequence)} to ${exact(stats[0].next_sequence - 1)}` : `none; the next is ${exact(stats[0].next_sequence)}`]] : []),
    ["Writes", exact(seen.total.writes)],
    ["Batches listed per write", perWrite],
    [null, "The store has no record of conflicts. A process whose write conflicts tries again, and counts it in the metric forebay.manifest.conflicts."],
  ]);
}

function showCollector(seen) {
  const stats = seen.parts.map((part) => part.stats).filter(Boolean);
  const floors = stats.map((one) => one.floor_ms);
  const floor = floors.length && floors.every((ms) => ms !== null) ? Math.min(...floors) : null;
  const sweep = seen.trail?.sweep;
  const rows = [["Cleared up to", floor === null ? "nothing collected yet" : `${clock(floor)}, ${ago(floor)}`]];
  if (sweep) {
    const ended = sweep.finished_ms === null ? `began ${ago(sweep.started_ms)}, no end recorded` : ago(sweep.finished_ms);
    rows.push(["Last sweep", ended], ["It deleted", some(sweep.deleted, "object", "objects") + (sweep.failed ? `; ${exact(sweep.failed)} failed` : "")]);
  } else if (seen.trail && !seen.trail.error) {
    rows.push(["Last sweep", "none recorded lately"]);
  }
  rows.push(["Dropped unread", exact(seen.total.dropped)]);
  const holds = stats.flatMap((one) => one.holds);
  for (const hold of holds.slice(0, 6)) {
    const what = hold.first_sequence === null ? "uploads" : `from batch ${exact(hold.first_sequence)}`;
    const left = hold.expires_ms === null ? hold.ttl_seconds : Math.max(0, hold.expires_ms - now()) / 1000;
    const until = hold.expired ? "expired" : `${span(left)} left unless renewed`;
    rows.push([`Held: ${hold.purpose || "no purpose given"}`, `${what}, ${until}`]);
  }
  if (holds.length > 6) rows.push(["Held", `${holds.length - 6} more`]);
  if (!holds.length) rows.push(["Holds", "none"]);
  if (!seen.trail) rows.push([null, "Start the page with --events LOG to see when it last swept, and what."]);
  list(at("collector"), rows);
}

function showLetters(seen) {
  const letters = seen.dead_letters;
  const target = at("letters");
  if (!letters) {
    target.replaceChildren(make("p", "note", "Start the page with --dead-letters URL to count them."));
  } else if (letters.error) {
    target.replaceChildren(make("p", "note", `${letters.error.kind}: ${letters.error.message}`));
  } else {
    const found = make("p", "figure-small", exact(letters.entries ?? letters.batches));
    const rows = letters.newest.map((letter) =>
      make("li", "", make("time", "", letter.time_ms === null ? "" : clock(letter.time_ms)), make("span", "", `${letter.sequence === null ? "" : `batch ${exact(letter.sequence)}, ${letter.place}: `}${letter.error}`)),
    );
    target.replaceChildren(found, make("p", "note", letters.batches ? `${letters.entries === null ? "batches" : letters.entries === 1 ? "entry" : "entries"} put aside in ${letters.url}` : "Every batch could be committed."), make("ol", "events", ...rows));
  }
}

function showEvents(seen) {
  const trail = seen.trail;
  const empty = !trail ? "Start the page with --events LOG to see fences, halts, dead letters and sweeps." : trail.error ? `${trail.error.kind}: ${trail.error.message}` : "The audit trail has no recent event of this buffer.";
  const rows = (trail?.events ?? []).map((event) => {
    const time = make("time", "", clock(event.time_ms));
    time.dateTime = time.title = new Date(event.time_ms).toISOString();
    return make("li", "", time, make("span", event.level, event.text || event.kind));
  });
  at("events").replaceChildren(...(rows.length ? rows : [make("li", "empty", empty)]));
}

function alerts() {
  const found = [];
  const add = (level, title, text, more) => found.push({ level, title, text, more });
  if (lost) add("warning", "This page has lost its server.", "Is forebay ui still running? It tries again every few seconds.", lost);
  if (!state?.seen) return found;
  const { seen, error } = state;
  if (error) add("critical", `${error.kind}.`, error.message, `${error.hint} The page shows what was seen at ${clock(seen.sampled_ms)}.`);
  const failed = seen.parts.filter((part) => part.error);
  if (failed.length) add("critical", `${some(failed.length, "partition", "partitions")} of ${seen.parts.length} could not be read.`, failed[0].error.message, failed[0].error.hint);
  for (const event of seen.trail?.stopped ?? []) {
    const fenced = event.kind === "runtime.fenced";
    if (fenced && now() - event.time_ms > FENCE_SHOWN_MS) continue;
    const more = fenced ? "Another process took over, and the first one has changed nothing since. This is expected if you started a second one." : "It stays halted until you remove the cause and start it again. Nothing is lost meanwhile.";
    add(fenced ? "warning" : "critical", `${readerName(event.group)} ${fenced ? "was fenced" : "halted"} at ${clock(event.time_ms)}.`, event.text.slice(event.text.indexOf(": ") + 2), more);
  }
  if (!error && !failed.length && !seen.total.batches && !seen.total.groups.some((group) => group.lag_batches)) {
    const ever = seen.parts.some((part) => part.stats?.next_sequence);
    add("info", ever ? "Nothing is waiting." : "This buffer is empty.", ever ? "Everything that was listed has been read and trimmed." : `Nothing was written to it yet. To write, run: forebay produce ${state.url}`);
  }
  return found;
}

let shownAlerts = "";
function showAlerts() {
  const found = alerts();
  const same = JSON.stringify(found);
  if (same === shownAlerts) return; // or a screen reader would read it again at every look
  shownAlerts = same;
  at("alerts").replaceChildren(
    ...found.map(({ level, title, text, more }) => make("p", `alert ${level}`, make("strong", "", title), text, make("span", "muted", more ?? ""))),
  );
}

function showVacant() {
  const vacant = !state?.seen && state?.error;
  at("vacant").hidden = !vacant;
  if (!vacant) return;
  const missing = state.condition === "missing";
  at("vacant-title").textContent = missing ? "There is no buffer here yet" : `The store cannot be read: ${state.error.kind}`;
  at("vacant-text").textContent = state.error.message;
  at("vacant-hint").textContent = state.error.hint;
  at("vacant-command").textContent = missing ? `echo hello | forebay produce ${state.url}` : "";
}

function showPulse() {
  const texts = { starting: "Looking…", live: "Live", stale: "Stale", missing: "Nothing there", broken: "Cannot be read", lost: "No answer" };
  const condition = lost ? "lost" : state?.condition ?? "starting";
  document.body.dataset.condition = condition;
  const seen = state?.seen ? `, seen ${ago(state.seen.sampled_ms)}` : "";
  at("pulse-text").textContent = texts[condition] + seen;
  document.title = `${condition === "live" ? "" : `${texts[condition]}: `}${state ? `${state.url} – ` : ""}forebay`;
}

function show() {
  at("content").hidden = !state?.seen;
  showVacant();
  if (state) at("url").textContent = state.url;
  if (state?.seen) {
    const { seen } = state;
    at("kind").textContent = seen.is_topic ? `topic of ${some(seen.parts.length, "partition", "partitions")}` : "buffer";
    const by = measure(seen);
    for (const group of seen.total.groups) lookOf(group.name);
    showTiles(seen, by);
    showCharts(seen, by);
    showReaders(seen);
    showParts(seen);
    showSchema(seen);
    showNewest(seen);
    showManifest(seen);
    showCollector(seen);
    showLetters(seen);
    showEvents(seen);
  }
  showAlerts();
  showPulse();
  document.body.dataset.points = points.length;
}

// Asking the server, which looks at the store once for all viewers

async function ask() {
  const after = points.at(-1)?.number ?? 0;
  const answer = await fetch(`state.json?after=${after}`, { cache: "no-store", signal: AbortSignal.timeout(8000) });
  if (answer.status === 401) throw new Error("The token is not valid any more: open the page by its address with ?token=… again.");
  if (!answer.ok) throw new Error(`It answered ${answer.status}.`);
  return answer.json();
}

async function refresh() {
  try {
    let fresh = await ask();
    if (state && fresh.started_ms !== state.started_ms) {
      points = []; // another server: its history is another
      fresh = await ask();
    }
    ahead = fresh.now_ms - Date.now();
    points = [...points, ...fresh.points].slice(-KEPT_POINTS);
    state = fresh;
    lost = null;
  } catch (error) {
    lost = error.message;
  }
  show();
}

let timer;
let asking = false; // one request at a time, or points would come twice
async function run() {
  if (asking) return;
  clearTimeout(timer);
  asking = true;
  await refresh();
  asking = false;
  timer = setTimeout(run, 1000 * (state?.interval ?? 2));
}

const charts = {
  flow: new Chart(at("flow"), { label: "In and out per second", format: count }),
  lag: new Chart(at("lag"), { label: "Lag of each reader", format: count, none: "Nobody reads yet" }),
  depth: new Chart(at("depth"), { label: "Depth in batches", format: count }),
  writes: new Chart(at("writes"), { label: "Manifest writes per second", format: count, small: true }),
};
for (const [id, byAge] of [["lag-by-count", false], ["lag-by-age", true]]) {
  at(id).addEventListener("click", () => {
    lagByAge = byAge;
    at("lag-by-count").setAttribute("aria-pressed", String(!byAge));
    at("lag-by-age").setAttribute("aria-pressed", String(byAge));
    show();
  });
}
document.addEventListener("visibilitychange", run); // a browser lets a hidden page wait for long
setInterval(showPulse, 1000);
run();
