// The current request as something to run elsewhere. The key never stands in it, only the name of a variable.

const OPENAI = new Set([
  "model", "messages", "stream", "stream_options", "logprobs", "top_logprobs", "temperature", "top_p", "max_tokens", "seed",
]);
const KEY = "SLIPSTREAM_API_KEY";

const base = () => new URL("v1", document.baseURI).href;

/** In a shell's single quotes, where only the quote itself means something. */
const shell = (text) => `'${text.replaceAll("'", `'\\''`)}'`;

export function curl(body, withKey) {
  const key = withKey ? `  -H "Authorization: Bearer $${KEY}" \\\n` : "";
  return `curl -N ${shell(`${base()}/chat/completions`)} \\\n  -H 'Content-Type: application/json' \\\n${key}  -d ${shell(JSON.stringify(body, null, 2))}\n`;
}

/** A JSON value as Python writes it. */
function python(value, indent) {
  const inner = `${indent}    `;
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) {
    return value.length ? `[\n${value.map((item) => `${inner}${python(item, inner)},\n`).join("")}${indent}]` : "[]";
  }
  if (typeof value === "object") {
    const items = Object.entries(value).map(([name, item]) => `${JSON.stringify(name)}: ${python(item, inner)}`);
    return `{${items.join(", ")}}`;
  }
  return JSON.stringify(value); // strings and numbers are written alike, lone surrogates aside
}

export function pythonSdk(body, withKey) {
  const entries = Object.entries(body);
  const lines = entries.filter(([name]) => OPENAI.has(name)).map(([name, value]) => `    ${name}=${python(value, "    ")},\n`);
  const extra = entries.filter(([name]) => !OPENAI.has(name));
  if (extra.length) lines.push(`    extra_body=${python(Object.fromEntries(extra), "    ")},\n`);
  const key = withKey ? `os.environ["${KEY}"]` : `"none"`;
  return `${withKey ? "import os\n\n" : ""}from openai import OpenAI

client = OpenAI(base_url=${JSON.stringify(base())}, api_key=${key})
stream = client.chat.completions.create(
${lines.join("")})
for chunk in stream:
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
    if speculation := getattr(chunk, "speculation", None):
        print("\\n", speculation)
`;
}
