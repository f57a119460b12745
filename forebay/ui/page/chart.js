// Line charts over time, drawn by hand: gridlines, areas, gaps where nothing is known, and a reading line that follows
// the pointer or the arrow keys.

const SVG = "http://www.w3.org/2000/svg";
const LEAST_SPAN_MS = 120_000; // a page just opened: a line of two points is not stretched over the whole width

export const clock = (ms) => new Date(ms).toLocaleTimeString("en-GB");

function draw(tag, attributes = {}, text) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

const SPANS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400];

/** Round numbers from 0 to at least `most`, one to four steps of them: of seconds, those that a clock has. */
function ticks(most, ofTime) {
  const rough = most / 4 || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const round = [1, 2, 2.5, 5, 10].find((times) => times * power >= rough) * power;
  const step = (ofTime && SPANS.find((seconds) => seconds >= rough)) || round;
  return Array.from({ length: Math.max(1, Math.ceil(most / step - 1e-9)) + 1 }, (_, i) => i * step);
}

function timeTicks(from, to, room) {
  const steps = [15, 30, 60, 120, 300, 600].map((seconds) => seconds * 1000);
  const step = steps.find((ms) => (to - from) / ms <= room) ?? 600_000;
  const found = [];
  for (let at = Math.ceil(from / step) * step; at <= to; at += step) found.push(at);
  return found;
}

/**
 * Returns means of a few looks each, if there are more looks than a line has room for. Without means, values that come in
 * bursts, such as acknowledgements, would look like a band. The means start at the same moments at every look: otherwise
 * the line would tremble.
 */
function thin(times, series, gap, width) {
  const room = Math.max(50, width / 3);
  if (times.length <= room) return [times, series, gap];
  const least = (times.at(-1) - times[0]) / room;
  const length = 2 ** Math.ceil(Math.log2(least));
  const starts = times.map((ms, i) => i).filter((i) => i === 0 || Math.floor(times[i] / length) !== Math.floor(times[i - 1] / length));
  const mean = (values) => (values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null);
  const cut = (values) => starts.map((start, i) => mean(values.slice(start, starts[i + 1]).filter((value) => value !== null)));
  const thinned = series.map((one) => ({ ...one, values: cut(one.values) }));
  return [starts.map((start, i) => times[(starts[i + 1] ?? times.length) - 1]), thinned, gap + 2 * length];
}

export class Chart {
  /** `options`: label (what it shows, for who cannot see it), format (a value as text), small. */
  constructor(host, options) {
    this.host = host;
    this.options = options;
    this.series = [];
    this.reading = null;
    this.svg = draw("svg", { role: "img", tabindex: "0" });
    this.hair = draw("g");
    this.tip = document.createElement("div");
    this.tip.className = "tip";
    this.tip.hidden = true;
    host.append(this.svg, this.tip);
    this.svg.addEventListener("pointermove", (event) => this.#readAt(event.clientX));
    this.svg.addEventListener("pointerdown", (event) => this.#readAt(event.clientX));
    this.svg.addEventListener("pointerleave", () => this.#read(null));
    this.svg.addEventListener("blur", () => this.#read(null));
    this.svg.addEventListener("keydown", (event) => this.#step(event));
    new ResizeObserver(() => this.#draw()).observe(host);
  }

  /**
   * `series`: [{name, look (a class that gives the colour), values (as many as times, null where unknown), area}].
   * `gap`: milliseconds without a look after which a line is broken; `scale`: as `format`, shorter, for the axis.
   */
  show(everyTime, everySeries, { gap, ofTime = false, format = this.options.format, scale = format }) {
    [this.times, this.series, this.gap] = thin(everyTime, everySeries, gap, this.host.clientWidth);
    this.ofTime = ofTime;
    this.format = format;
    this.scale = scale;
    this.#draw();
  }

  #draw() {
    if (!this.times) return;
    const { width, height } = this.host.getBoundingClientRect();
    if (!width) return;
    const small = this.options.small;
    const box = { left: small ? 34 : 46, right: width - 6, top: 8, bottom: height - 20 };
    const to = this.times.at(-1) ?? Date.now();
    const from = Math.min(this.times[0] ?? to, to - LEAST_SPAN_MS);
    const most = Math.max(0, ...this.series.flatMap((one) => one.values.filter((value) => value !== null)));
    const rules = ticks(most, this.ofTime);
    const shown = small ? [rules[0], rules.at(-1)] : rules;
    this.x = (ms) => box.left + ((ms - from) / (to - from)) * (box.right - box.left);
    this.y = (value) => box.bottom - (value / rules.at(-1)) * (box.bottom - box.top);
    this.box = box;
    const parts = [];
    for (const value of shown) {
      const y = this.y(value);
      parts.push(draw("line", { class: value ? "rule" : "base", x1: box.left, x2: box.right, y1: y, y2: y }));
      parts.push(draw("text", { x: box.left - 8, y: y + 4, "text-anchor": "end" }, this.scale(value)));
    }
    for (const ms of timeTicks(from, to, Math.max(2, (box.right - box.left) / 90))) {
      const label = clock(ms).slice(0, to - from > 240_000 ? 5 : 8);
      const x = this.x(ms);
      const edge = x + 26 > width ? "end" : x - 26 < box.left - 4 ? "start" : "middle";
      parts.push(draw("text", { x: edge === "end" ? width : x, y: height - 4, "text-anchor": edge }, label));
    }
    for (const one of this.series) parts.push(...this.#line(one));
    if (!this.series.some((one) => one.values.some((value) => value !== null))) {
      const middle = { x: (box.left + box.right) / 2, y: (box.top + box.bottom) / 2, "text-anchor": "middle" };
      parts.push(draw("text", { class: "none", ...middle }, this.options.none ?? "Nothing to draw yet"));
    }
    this.hair = draw("g");
    parts.push(this.hair);
    this.svg.replaceChildren(...parts);
    const now = this.series.map((one) => `${one.name} ${this.#text(one.values.at(-1))}`).join(", ");
    this.svg.setAttribute("aria-label", `${this.options.label}: ${now || "nothing"}. Arrow keys read earlier values.`);
    this.#read(this.reading);
  }

  #line(one) {
    const runs = [];
    let run = [];
    this.times.forEach((ms, i) => {
      const far = i > 0 && ms - this.times[i - 1] > this.gap;
      if (one.values[i] === null || far) {
        if (run.length) runs.push(run);
        run = [];
      }
      if (one.values[i] !== null) run.push([this.x(ms), this.y(one.values[i])]);
    });
    if (run.length) runs.push(run);
    const nodes = [];
    for (const points of runs) {
      const path = points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
      if (one.area) {
        const [first, last] = [points[0][0].toFixed(1), points.at(-1)[0].toFixed(1)];
        const down = `${path}L${last} ${this.box.bottom}L${first} ${this.box.bottom}Z`;
        nodes.push(draw("path", { class: `area ${one.look}`, d: down }));
      }
      nodes.push(draw("path", { class: `line ${one.look}`, d: points.length > 1 ? path : `${path}h.01` }));
    }
    return nodes;
  }

  #text(value) {
    return value === null || value === undefined ? "not known" : this.format(value);
  }

  #readAt(clientX) {
    if (!this.times?.length) return;
    const x = clientX - this.host.getBoundingClientRect().left;
    let nearest = 0;
    this.times.forEach((ms, i) => {
      if (Math.abs(this.x(ms) - x) < Math.abs(this.x(this.times[nearest]) - x)) nearest = i;
    });
    this.#read(this.times[nearest]);
  }

  #step(event) {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === "Escape") this.#read(null);
    if (!move || !this.times?.length) return;
    event.preventDefault();
    const at = this.times.indexOf(this.reading);
    const next = at < 0 ? this.times.length - 1 : Math.min(Math.max(at + move, 0), this.times.length - 1);
    this.#read(this.times[next]);
  }

  #read(ms) {
    const at = ms === null ? -1 : this.times.indexOf(ms);
    this.reading = at < 0 ? null : ms;
    this.tip.hidden = at < 0;
    this.hair.replaceChildren();
    if (at < 0) return;
    const x = this.x(ms);
    this.hair.append(draw("line", { class: "hair", x1: x, x2: x, y1: this.box.top, y2: this.box.bottom }));
    const when = document.createElement("div");
    when.className = "when";
    when.textContent = clock(ms);
    const rows = [when];
    for (const one of this.series) {
      const value = one.values[at];
      if (value !== null) this.hair.append(draw("circle", { class: `mark ${one.look}`, cx: x, cy: this.y(value), r: 4 }));
      const row = document.createElement("div");
      const name = document.createElement("span");
      const swatch = document.createElement("span");
      swatch.className = `swatch ${one.look}`;
      name.append(swatch, one.name);
      const figure = document.createElement("b");
      figure.textContent = this.#text(value);
      row.append(name, figure);
      rows.push(row);
    }
    this.tip.replaceChildren(...rows);
    const left = x > this.box.left + (this.box.right - this.box.left) / 2;
    this.tip.style.left = left ? "auto" : `${x + 12}px`;
    this.tip.style.right = left ? `${this.host.clientWidth - x + 12}px` : "auto";
  }
}
