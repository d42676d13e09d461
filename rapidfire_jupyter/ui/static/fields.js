// @ts-check
/* Hyperparameters as typed text and back. Pure; the kernel's check has the last word. */

const MOST_CLONES = 16;
const FEW_CHOICES = 5;

/** A value as it stands in a form. */
function fieldText(/** @type {Json} */ value) {
  if (value === null || value === undefined) return "None";
  if (Array.isArray(value))
    return value.every((one) => typeof one === "string" && !/[,|[\]"]/.test(one))
      ? value.join(", ")
      : JSON.stringify(value);
  if (typeof value === "object") return JSON.stringify(value);
  return typeof value === "boolean" ? (value ? "True" : "False") : String(value);
}

/**
 * What was typed for a field: one value, or several for a clone each.
 * @param {Field} field @param {string} text
 * @returns {{values: Json[], error: string}}
 */
function readField(field, text) {
  const numeric = field.kind === "int" || field.kind === "float";
  const pieces =
    text.trim() === ""
      ? [""]
      : text
          .split(numeric ? /[,;|\s]+/ : "|")
          .map((piece) => piece.trim())
          .filter((piece, _i, all) => piece || all.length === 1);
  /** @type {Json[]} */
  const values = [];
  for (const piece of pieces) {
    const [value, error] = readOne(field, piece);
    if (error) return { values: [], error };
    if (!values.some((one) => same(one, value))) values.push(value);
  }
  return { values, error: "" };
}

/** @returns {[Json, string]} a value, and why it is none */
function readOne(/** @type {Field} */ field, /** @type {string} */ text) {
  if (
    text === "None" &&
    (field.value === null || field.kind === "text" || field.kind === "list" || field.choices?.includes(null))
  )
    return [null, ""];
  if (field.kind === "int" || field.kind === "float") return readNumber(field, text);
  if (field.kind === "bool")
    return /^(true|false)$/i.test(text) ? [text.toLowerCase() === "true", ""] : [null, "must be True or False"];
  if (field.kind === "choice" && field.choices) {
    const found = field.choices.find((one) => fieldText(one) === text);
    return found === undefined ? [null, `must be one of ${field.choices.map(fieldText).join(", ")}`] : [found, ""];
  }
  if (/^[[{]/.test(text) || (field.value !== null && typeof field.value === "object" && !Array.isArray(field.value))) {
    try {
      return [JSON.parse(text), ""];
    } catch {
      return [null, "is no valid JSON"];
    }
  }
  if (field.kind === "list")
    return text === "" ? [null, "is empty; write None for no value"] : [readList(field, text), ""];
  return typeof field.value === "number" || (field.value === null && text !== "" && Number.isFinite(Number(text)))
    ? [wordOrNumber(text), ""]
    : [text, ""];
}

/** Words with commas between them; "all-linear" and its like stay a text, as PEFT takes either. */
function readList(/** @type {Field} */ field, /** @type {string} */ text) {
  const asList = text.includes(",") || (Array.isArray(field.value) && text !== "all-linear");
  return asList
    ? text
        .split(",")
        .map((one) => one.trim())
        .filter(Boolean)
        .map(wordOrNumber)
    : text;
}

/** A number where the text is one. */
function wordOrNumber(/** @type {string} */ text) {
  return text !== "" && Number.isFinite(Number(text)) ? Number(text) : text;
}

/** @returns {[Json, string]} */
function readNumber(/** @type {Field} */ field, /** @type {string} */ text) {
  const value = Number(text.replace("−", "-"));
  if (text === "" || !Number.isFinite(value)) return [null, "must be a number"];
  if (field.kind === "int" && !Number.isInteger(value)) return [null, "must be a whole number"];
  if (field.least !== null && value < field.least) return [null, `must be at least ${showNumber(field.least)}`];
  if (field.most !== null && value > field.most) return [null, `must be at most ${showNumber(field.most)}`];
  return [value, ""];
}

/** Whether two JSON values are equal. */
function same(/** @type {Json} */ a, /** @type {Json} */ b) {
  return JSON.stringify(a) === JSON.stringify(b);
}

/**
 * Every combination of the values given: the changes of one clone each.
 * @param {Map<string, Json[]>} given values by path
 * @returns {Record<string, Json>[]}
 */
function combinations(given) {
  /** @type {Record<string, Json>[]} */
  let found = [{}];
  for (const [path, values] of given)
    found = found.flatMap((changes) => values.map((value) => ({ ...changes, [path]: value })));
  return found;
}

/** How many clones values stand for, without making them. */
function countCombinations(/** @type {Map<string, Json[]>} */ given) {
  return [...given.values()].reduce((product, values) => product * values.length, 1);
}

/** Changes without what is as the parent has it. */
function onlyChanged(/** @type {Record<string, Json>} */ changes, /** @type {Map<string, Field>} */ fields) {
  return Object.fromEntries(Object.entries(changes).filter(([path, value]) => !same(value, fields.get(path)?.value)));
}

/**
 * The control of a field.
 * @param {Field} field @param {string} id @param {() => void} changed
 * @returns {{control: HTMLElement, read: () => {values: Json[], error: string}, reset: () => void}}
 */
function makeControl(field, id, changed) {
  const few =
    field.kind === "bool"
      ? [true, false]
      : field.kind === "choice" && field.choices && field.choices.length <= FEW_CHOICES
        ? field.choices
        : null;
  if (field.kind === "fixed") {
    const text = h("output", { id, class: "rf-fixed rf-cut", title: fieldText(field.value) }, fieldText(field.value));
    return { control: text, read: () => ({ values: [field.value], error: "" }), reset: () => undefined };
  }
  if (few) {
    const boxes = few.map((value) =>
      h("input", { type: "checkbox", checked: same(value, field.value), onchange: changed }),
    );
    const control = h(
      "div",
      { class: "rf-chips", role: "group", "aria-labelledby": `${id}-label`, "aria-describedby": `${id}-note`, id },
      few.map((value, index) => h("label", null, boxes[index], fieldText(value))),
    );
    const read = () => {
      const values = few.filter((_value, index) => boxes[index].checked);
      return values.length ? { values, error: "" } : { values: [], error: "choose at least one" };
    };
    return { control, read, reset: () => boxes.forEach((box, index) => (box.checked = same(few[index], field.value))) };
  }
  const list =
    field.kind === "choice" && field.choices
      ? h(
          "datalist",
          { id: `${id}-list` },
          field.choices.map((value) => h("option", { value: fieldText(value) })),
        )
      : null;
  const input = h("input", {
    type: "text",
    id,
    value: fieldText(field.value),
    autocomplete: "off",
    spellcheck: "false",
    inputmode: field.kind === "int" ? "numeric" : null,
    list: list && `${id}-list`,
    "aria-describedby": `${id}-note`,
    oninput: changed,
  });
  const control = list ? h("span", { class: "rf-withlist" }, input, list) : input;
  const read = () =>
    input.value === fieldText(field.value) ? { values: [field.value], error: "" } : readField(field, input.value);
  return { control, read, reset: () => (input.value = fieldText(field.value)) };
}
