// @ts-check
/* Values as people read them. Pure. */

const NONE = "–";

/** A number in about `digits` digits: 0.0003 as 3e-4, 1.2345 as 1.234; names of non-finite ones stay. */
function showNumber(/** @type {unknown} */ value, digits = 4) {
  if (value === null || value === undefined) return NONE;
  if (typeof value !== "number") return String(value);
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e6) return String(value).replace("-", "−");
  if (size < 1e-3 || size >= 1e6) {
    const [mantissa, exponent] = value.toExponential(digits - 2).split("e");
    return `${String(Number(mantissa))}e${Number(exponent)}`.replaceAll("-", "−").replace("e−", "e-");
  }
  if (size < 0.1) return String(Number(value.toPrecision(digits - 1))).replace("-", "−");
  return value.toFixed(Math.max(0, digits - 1 - Math.max(0, Math.floor(Math.log10(size))))).replace("-", "−");
}

/** A hyperparameter's value in one line. @returns {string} */
function showValue(/** @type {any} */ value) {
  if (value === null || value === undefined) return "None";
  if (typeof value === "number")
    return Math.abs(value) >= 1e-3 && Math.abs(value) < 1e6 ? String(Number(value.toPrecision(5))) : showNumber(value);
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value))
    return value.map((one) => (Array.isArray(one) ? `[${showValue(one)}]` : showValue(one))).join(", ");
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

/** Seconds as 42 s, 3 min, 1 h 20 min. */
function showDuration(/** @type {number | null | undefined} */ seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return NONE;
  if (seconds < 60) return `${Math.max(0, Math.round(seconds))} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 60) return `${minutes} min`;
  if (minutes < 48 * 60) return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  return `${Math.floor(minutes / 1440)} d ${Math.floor((minutes % 1440) / 60)} h`;
}

/** Seconds since the start as 0:42, 12:03, 1:02:03. */
function showClock(/** @type {number} */ seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  const pad = (/** @type {number} */ n) => String(n).padStart(2, "0");
  const [hours, minutes] = [Math.floor(whole / 3600), Math.floor((whole % 3600) / 60)];
  return hours ? `${hours}:${pad(minutes)}:${pad(whole % 60)}` : `${minutes}:${pad(whole % 60)}`;
}

/** Bytes as 3.1 GB. */
function showBytes(/** @type {number | null | undefined} */ bytes) {
  if (bytes === null || bytes === undefined) return NONE;
  const power = Math.min(4, Math.max(0, Math.floor(Math.log10(Math.max(1, bytes)) / 3)));
  const size = bytes / 1000 ** power;
  return `${size >= 100 || power === 0 ? Math.round(size) : size.toFixed(1)} ${["B", "kB", "MB", "GB", "TB"][power]}`;
}

/** A share from 0 to 1 as 34 %. */
function showShare(/** @type {number} */ share) {
  return `${Math.floor(Math.min(1, Math.max(0, share || 0)) * 100)} %`;
}

/** The last part of a dotted name: "training_args.learning_rate" as "learning_rate". */
function shortName(/** @type {string} */ path) {
  return path.slice(path.lastIndexOf(".") + 1);
}

/** A run as it is called in sentences. */
function runTitle(/** @type {Row} */ row) {
  const changes = Object.entries(row.changes || {}).map(([name, value]) => `${shortName(name)}=${showValue(value)}`);
  if (row.parent !== null && row.name === `clone of ${row.parent}` && changes.length)
    return `${row.id} · ${row.name}: ${changes.join(", ")}`; // clones of one run are told apart by what changed
  return row.name && row.name !== String(row.id) && row.name !== `run ${row.id}`
    ? `${row.id} · ${row.name}`
    : `run ${row.id}`;
}

/** Its title in the table, which has a column for each hyperparameter that a grid's names tell. */
function tableTitle(/** @type {Row} */ row, /** @type {string[]} */ varying) {
  const told = row.name.split(" ").every((part) => varying.some((path) => part.startsWith(`${shortName(path)}=`)));
  return told ? `run ${row.id}` : runTitle(row);
}

/** "1 run", "2 runs". */
function plural(/** @type {number} */ count, /** @type {string} */ noun) {
  return `${count} ${noun}${count === 1 ? "" : "s"}`;
}

/** The number a wire value stands for; names of non-finite ones become them. NaN for no value. */
function toNumber(/** @type {unknown} */ value) {
  if (typeof value === "number") return value;
  if (value === "Infinity") return Infinity;
  return value === "-Infinity" ? -Infinity : NaN;
}
