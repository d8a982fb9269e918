// Form fields made from the server's own schemas: their bounds, names and defaults. An empty field is not sent.

import { el, freshId } from "./dom.js";
import { essence } from "./server_card.js";

const words = (name) => name.replaceAll("_", " ");

class Field {
  /** path: how the server's errors name it, such as verifier.window. */
  constructor(path, label, input, hint) {
    this.path = path;
    this.name = path.split(".").at(-1);
    this.input = input;
    input.id = freshId("field");
    input.name = path;
    if (hint) input.setAttribute("aria-description", hint);
    this.element = el("div", { class: "field", title: hint }, el("label", { for: input.id }, label), input);
    input.addEventListener("input", () => this.blame(false));
  }

  /** Mark it as the one at fault, or no longer. */
  blame(wrong) {
    if (wrong) this.input.setAttribute("aria-invalid", "true");
    else this.input.removeAttribute("aria-invalid");
  }
}

export class NumberField extends Field {
  constructor(path, schema, { label, preset } = {}) {
    const found = essence(schema);
    const safe = (bound) => (Number.isSafeInteger(bound) || !Number.isInteger(bound) ? bound : Math.sign(bound) * Number.MAX_SAFE_INTEGER);
    const input = el("input", {
      type: "number",
      step: found.type === "integer" ? "1" : "any",
      min: found.minimum === undefined ? undefined : safe(found.minimum),
      max: found.maximum === undefined ? undefined : safe(found.maximum),
      placeholder: found.default ?? "",
      value: preset,
      inputmode: found.type === "integer" ? "numeric" : "decimal",
    });
    super(path, label ?? words(path.split(".").at(-1)), input, found.description);
  }

  /** A number, or undefined where it is left to the server. */
  read() {
    return this.input.value === "" ? undefined : Number(this.input.value);
  }
}

export class ChoiceField extends Field {
  /** empty: whether the server's default may stand. */
  constructor(path, schema, { label, empty = true, preset } = {}) {
    const found = essence(schema);
    const options = found.enum.map((name) => el("option", { value: name }, name));
    if (empty) options.unshift(el("option", { value: "" }, found.default ? `${found.default} (default)` : "default"));
    super(path, label ?? words(path.split(".").at(-1)), el("select", {}, ...options), found.description);
    this.element.classList.add("broad");
    this.standing = found.default; // what the server takes where the request does not say
    this.input.value = preset ?? (empty ? "" : (found.default ?? found.enum[0]));
  }

  read() {
    return this.input.value || undefined;
  }
}

export const fieldOf = (path, schema, options) =>
  new (essence(schema).enum ? ChoiceField : NumberField)(path, schema, options);
