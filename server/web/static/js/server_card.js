// What this server allows, from its own OpenAPI document: verifiers with their parameters, drafters, limits, defaults.

import { ask } from "./api.js";

/** {models: [name], fields: {name: schema}, verifiers: {name: {parameter: schema}}}; ApiError if it will not say. */
export async function describe() {
  const models = (await (await ask("v1/models")).json()).data.map((card) => card.id);
  const document = await (await ask("openapi.json")).json();
  const operation = document.paths["/v1/chat/completions"].post;
  const fields = operation.requestBody.content["application/json"].schema.properties;
  const verifiers = {};
  for (const { properties } of fields.verifier.anyOf) {
    if (!properties) continue;
    const { type, ...parameters } = properties;
    verifiers[type.const ?? type.default] = parameters;
  }
  return { models, fields, verifiers };
}

/** The part of a property's schema that holds its numbers or names, null aside. */
export function essence(schema) {
  const branch = (schema.anyOf ?? [schema]).find(({ type }) => type !== "null");
  const found = branch.anyOf ? essence(branch) : branch;
  return { ...found, default: schema.default ?? found.default, description: schema.description ?? found.description };
}
