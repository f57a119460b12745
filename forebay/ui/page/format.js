// Numbers, sizes and times for people; what is not known is a dash.

export const NOT_KNOWN = "–";

const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const known = (value) => value !== null && value !== undefined;

/** 48.2K; small numbers keep a digit or two. */
export function count(value) {
  if (!known(value)) return NOT_KNOWN;
  if (value && Math.abs(value) < 10 && !Number.isInteger(value)) return value.toFixed(value < 1 ? 2 : 1);
  return compact.format(value);
}

/** Every digit of it. */
export const exact = (value) => (known(value) ? whole.format(value) : NOT_KNOWN);

export function size(bytes) {
  if (!known(bytes)) return NOT_KNOWN;
  let [value, unit] = [bytes, "B"];
  for (const next of ["KiB", "MiB", "GiB", "TiB", "PiB"]) {
    if (value < 1024) break;
    [value, unit] = [value / 1024, next];
  }
  return `${value < 10 && unit !== "B" ? value.toFixed(1) : whole.format(value)} ${unit}`;
}

export function span(seconds) {
  if (!known(seconds)) return NOT_KNOWN;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 60) return `${Math.round(seconds)} s`;
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const at = units.findIndex(([, length]) => seconds >= length);
  const [[unit, length], [below, belowLength]] = units.slice(at, at + 2);
  const rest = Math.floor((seconds % length) / belowLength);
  return `${Math.floor(seconds / length)} ${unit}${rest ? ` ${rest} ${below}` : ""}`;
}

/** The same in one unit, for an axis. */
export function shortSpan(seconds) {
  const [unit, length] = [["d", 86400], ["h", 3600], ["min", 60]].find(([, most]) => seconds >= most) ?? ["s", 1];
  return `${Number((seconds / length).toFixed(1))} ${unit}`;
}

/** "1 batch", "2 batches". */
export const some = (number, one, many) => `${exact(number)} ${number === 1 ? one : many}`;
