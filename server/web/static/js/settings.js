// What a request asks beside its messages: verifier with parameters, drafting, sampling.

import { el } from "./dom.js";
import { ChoiceField, fieldOf } from "./fields.js";
import { VERIFIERS } from "./provenance.js";

const DRAFTING = ["num_draft_tokens", "drafter", "draft_length"];
// Greedy at first, so that answers can be compared; the API's own default is 1.
const SAMPLING = { temperature: "0", top_p: undefined, max_tokens: "512", seed: undefined };

/** The values of fields that are filled in, by name. */
function filled(fields) {
  return Object.fromEntries(fields.map((field) => [field.name, field.read()]).filter(([, value]) => value !== undefined));
}

class Group {
  all() {
    return this.fields;
  }

  /** Mark the field that an error of the server names; false if it is none of these. */
  blame(param) {
    const field = this.all().find(({ path }) => path === param);
    field?.blame(true);
    return field !== undefined;
  }
}

/** A verifier, its parameters, and how it drafts. */
export class VerifierSettings extends Group {
  constructor(card, preset, title = "Verifier") {
    super();
    this.card = card;
    this.verifier = new ChoiceField("verifier", card.fields.verifier, { label: title, empty: false, preset });
    this.meaning = el("p", { class: "muted small" });
    this.drafting = DRAFTING.map((name) => fieldOf(name, card.fields[name]));
    this.parameters = el("div", { class: "fields" });
    this.element = el("fieldset", { class: "stack" },
      el("legend", { class: "sr-only" }, title), this.verifier.element, this.meaning, this.parameters);
    this.verifier.input.addEventListener("change", () => this.choose());
    this.choose();
  }

  get name() {
    return this.verifier.read();
  }

  /** What the entropies of its answers are measured in. */
  get entropyUnit() {
    const kind = this.own.find(({ name }) => name === "entropy");
    return (kind?.read() ?? kind?.standing) === "full" ? "of ln V, the most there can be" : "nats";
  }

  choose() {
    const schemas = Object.entries(this.card.verifiers[this.name] ?? {});
    this.own = schemas.map(([name, schema]) => fieldOf(`verifier.${name}`, schema));
    this.meaning.textContent = VERIFIERS[this.name] ?? "";
    // Numbers first: they share rows, and choices take whole ones.
    const shown = this.all().slice(1).sort((one, other) => (one instanceof ChoiceField) - (other instanceof ChoiceField));
    this.parameters.replaceChildren(...shown.map((field) => field.element));
  }

  all() {
    return [this.verifier, ...this.own, ...(this.name === "off" ? [] : this.drafting)];
  }

  /** The request's fields: the verifier is an object only where parameters are given. */
  read() {
    const own = filled(this.own);
    const verifier = Object.keys(own).length ? { type: this.name, ...own } : this.name;
    return { verifier, ...(this.name === "off" ? {} : filled(this.drafting)) };
  }
}

export class SamplingSettings extends Group {
  constructor(card, presets = {}) {
    super();
    this.fields = Object.entries({ ...SAMPLING, ...presets }).map(([name, preset]) =>
      fieldOf(name, card.fields[name], { preset }));
    this.element = el("fieldset", { class: "fields" },
      el("legend", { class: "sr-only" }, "Sampling"), ...this.fields.map((field) => field.element));
  }

  read() {
    return filled(this.fields);
  }
}

/** A whole request's body, in the order in which people read one. */
export function bodyOf(model, messages, ...settings) {
  return {
    model,
    messages,
    ...Object.assign({}, ...settings.map((some) => some.read())),
    stream: true,
    stream_options: { include_usage: true },
    logprobs: true,
    return_provenance: true,
  };
}

/** Whether every visible field holds something that can be sent; the browser says what does not. */
export function checked(form) {
  return form.reportValidity();
}
