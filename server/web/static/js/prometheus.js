// Prometheus' text format, as far as /metrics uses it.

const LINE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)/;
const LABEL = /([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"/g;
const ESCAPED = { n: "\n", "\\": "\\", '"': '"' };

/** Every sample by its name: Map of name to [{labels, value}]. */
export function parse(text) {
  const found = new Map();
  for (const line of text.split("\n")) {
    const [, name, written = "", number] = (line.startsWith("#") ? null : LINE.exec(line)) ?? [];
    if (name === undefined) continue;
    const labels = {};
    for (const [, key, value] of written.matchAll(LABEL)) labels[key] = value.replace(/\\(.)/g, (_, one) => ESCAPED[one] ?? one);
    if (!found.has(name)) found.set(name, []);
    found.get(name).push({ labels, value: numberOf(number) });
  }
  return found;
}

const numberOf = (text) => ({ "+Inf": Infinity, "-Inf": -Infinity })[text] ?? Number(text);

/** The sum of a metric's samples that pass; null where it has none. */
export function total(samples, name, passes = () => true) {
  const values = (samples.get(name) ?? []).filter(({ labels }) => passes(labels));
  return values.length ? values.reduce((sum, { value }) => sum + value, 0) : null;
}

/** A histogram's cumulative counts, whatever its other labels: [upper bound, count] pairs, ascending. */
export function buckets(samples, name) {
  const counts = new Map();
  for (const { labels, value } of samples.get(`${name}_bucket`) ?? []) {
    const bound = numberOf(labels.le);
    counts.set(bound, (counts.get(bound) ?? 0) + value);
  }
  return [...counts].sort(([one], [other]) => one - other);
}

/**
 * A quantile of what was observed between two readings of a histogram, within a bucket by straight line, as PromQL's
 * histogram_quantile has it; null where nothing was.
 */
export function quantile(share, now, before) {
  const earlier = new Map(before);
  const counts = now.map(([bound, count]) => [bound, count - (earlier.get(bound) ?? 0)]);
  const all = counts.at(-1)?.[1] ?? 0;
  if (!(all > 0)) return null;
  const rank = share * all;
  const index = counts.findIndex(([, count]) => count >= rank);
  const [upper, count] = counts[index];
  const [lower, below] = index > 0 ? counts[index - 1] : [0, 0];
  if (upper === Infinity) return lower;
  return lower + (upper - lower) * ((rank - below) / (count - below));
}
