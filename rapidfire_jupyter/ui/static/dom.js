// @ts-check
/* Making page elements. Text goes in as text nodes only, so nothing from an experiment can be markup. */

const SVG = "http://www.w3.org/2000/svg";

/** Outlines of the icons, on a grid of 16. */
const ICONS = {
  pause: "M5 3h2v10H5zM9 3h2v10H9z",
  play: "M4.5 3v10l8-5z",
  stop: "M4 4h8v8H4z",
  clone: "M3 3h7v2H5v5H3zM6 6h7v7H6z",
  mix: "M8 2a6 6 0 1 0 0 12A6 6 0 0 0 8 2zm0 1.6v8.8a4.4 4.4 0 0 1 0-8.8z",
  plus: "M7 3h2v4h4v2H9v4H7V9H3V7h4z",
  minus: "M3 7h10v2H3z",
  trash: "M6 2h4v1h3v1.5H3V3h3zM4 5.5h8L11.3 14H4.7z",
  undo: "M6.5 3v2.5H9a4 4 0 0 1 0 8H5V12h4a2.5 2.5 0 0 0 0-5H6.5v2.5L2.5 6.2z",
  copy: "M3 2h7v2H5v7H3zM6 5h7v9H6z",
  close: "M4.2 3 8 6.8 11.8 3 13 4.2 9.2 8l3.8 3.8-1.2 1.2L8 9.2 4.2 13 3 11.8 6.8 8 3 4.2z",
  save: "M7 2h2v5h2.5L8 11 4.5 7H7zM3 12h10v1.5H3z",
  bell: "M8 2a4 4 0 0 1 4 4v3l1.2 2H2.800L4 9V6a4 4 0 0 1 4-4zM6.5 12h3a1.5 1.5 0 0 1-3 0z",
};

/**
 * Makes an element.
 * @param {string} tag
 * @param {Record<string, any> | null} [given] attributes; `on...` are listeners; false, null and undefined leave one out
 * @param {...any} children nodes, texts, numbers, lists of them; null and false are left out
 * @returns {any} the element
 */
function h(tag, given, ...children) {
  const element = /** @type {any} */ (document.createElement(tag));
  for (const [name, value] of Object.entries(given || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked" || name === "selected" || name === "indeterminate")
      element[name] = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** @type {CanvasRenderingContext2D | null} */
let ruler = null;

/** How many pixels a text is wide in the panel, in bold. */
function textWidth(/** @type {string} */ text, /** @type {string} */ font) {
  ruler = ruler || document.createElement("canvas").getContext("2d");
  if (!ruler) return 7.5 * text.length;
  ruler.font = `600 12.5px ${font}`;
  return ruler.measureText(text).width;
}

/**
 * An icon; hidden from screen readers, as the button around it has a label.
 * @param {keyof typeof ICONS} name
 */
function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  const path = document.createElementNS(SVG, "path");
  for (const [key, value] of Object.entries({
    viewBox: "0 0 16 16",
    width: "14",
    height: "14",
    "aria-hidden": "true",
    class: "rf-icon",
  }))
    svg.setAttribute(key, value);
  path.setAttribute("d", ICONS[name]);
  svg.append(path);
  return svg;
}

/**
 * A button with an icon, a text, or both.
 * @param {string} label what a screen reader says, and the tooltip
 * @param {keyof typeof ICONS | ""} symbol
 * @param {(event: MouseEvent) => void} act
 * @param {Record<string, any>} [given] further attributes; `text` is shown beside the icon
 */
function button(label, symbol, act, given = {}) {
  const { text, ...rest } = given;
  return h(
    "button",
    {
      type: "button",
      class: text ? "rf-button" : "rf-button rf-only",
      "aria-label": text === label ? null : label,
      title: text === label ? null : label,
      onclick: act,
      ...rest,
    },
    symbol && icon(symbol),
    text,
  );
}

/** Sets an element's text, only if it differs: an unchanged page is not laid out again. */
function setText(/** @type {Element} */ element, /** @type {string} */ text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Sets or removes an attribute, only if it differs. */
function setAttribute(/** @type {Element} */ element, /** @type {string} */ name, /** @type {string | null} */ value) {
  if (value === null) element.removeAttribute(name);
  else if (element.getAttribute(name) !== value) element.setAttribute(name, value);
}

/**
 * Makes a select show these options, and keeps it untouched where it already does.
 * @param {HTMLSelectElement} select
 * @param {[string, string][]} options value and text of each
 * @param {string} chosen
 */
function setOptions(select, options, chosen) {
  const wanted = JSON.stringify(options);
  if (select.dataset.options !== wanted) {
    select.dataset.options = wanted;
    select.replaceChildren(...options.map(([value, text]) => h("option", { value }, text)));
  }
  if (select.value !== chosen) select.value = chosen;
}

/** A random id for views, orders and asks. */
function randomId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(8)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Puts a text on the clipboard, also where the page has no permission for the modern way. */
async function copyText(/** @type {string} */ text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = h("textarea", { class: "rf-offscreen", value: text });
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

/** Offers bytes as a download. */
function saveFile(/** @type {string} */ name, /** @type {Blob} */ blob) {
  const url = URL.createObjectURL(blob);
  const link = h("a", { href: url, download: name, hidden: true });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/** A form's section: its title, a way to close it, and what it asks. */
function formSection(/** @type {View} */ view, /** @type {string} */ title, /** @type {any} */ body) {
  const header = h(
    "header",
    null,
    h("h3", { class: "rf-cut", title }, title),
    button("Close", "close", () => view.closeForm()),
  );
  return h("section", { class: "rf-form", "aria-label": title }, header, body);
}
