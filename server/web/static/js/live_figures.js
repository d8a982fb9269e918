// From readings of /metrics to what the live view shows.

import { buckets, quantile, total } from "./prometheus.js";

const drafting = ({ verifier }) => verifier !== "off";
const RATES = 10; // seconds over which rates and ratios are taken
const PERCENTILES = 60; // seconds of answers behind a percentile
const LOST = 8; // seconds without a reading, three polls and a slow answer, after which the older ones tell nothing

/** A reading: when it was taken (seconds), and its samples. */
export class Readings {
  constructor(keep = PERCENTILES) {
    this.keep = keep;
    this.all = [];
  }

  /** Whether it goes on from the one before: not after a pause (nobody looked, the machine slept), nor after the
   *  server or the clock began anew. Figures then start afresh, rather than stretch over what nobody saw. */
  add(at, samples) {
    const latest = this.all.at(-1);
    const goesOn = latest !== undefined && at > latest.at && at - latest.at <= LOST && !fell(latest.samples, samples);
    if (!goesOn) this.all = [];
    this.all.push({ at, samples });
    while (this.all.length > 2 && this.all[1].at <= at - this.keep) this.all.shift();
    return goesOn;
  }

  /** The latest reading that is at least so many seconds old, else the oldest. */
  before(seconds) {
    const latest = this.all.at(-1);
    return this.all.findLast(({ at }) => at <= latest.at - seconds) ?? this.all[0];
  }

  /** Everything the view shows of this moment; null where there is nothing to say. */
  figures() {
    const now = this.all.at(-1);
    const past = this.before(RATES);
    const grown = (name, passes) => (total(now.samples, name, passes) ?? 0) - (total(past.samples, name, passes) ?? 0);
    const ratio = (part, whole) => (whole > 0 ? part / whole : null);
    const gauge = (name, passes) => total(now.samples, name, passes);
    const spoken = (name) => grown(`slipstream_speculation_${name}_total`, drafting);
    const percentile = (name, share) =>
      quantile(share, buckets(now.samples, name), buckets(this.before(PERCENTILES).samples, name));
    const used = gauge("slipstream_kv_blocks", ({ state }) => state === "used");
    const cached = gauge("slipstream_kv_blocks", ({ state }) => state === "cached");
    const limit = gauge("slipstream_kv_blocks_limit");
    const rounds = spoken("rounds");
    const spent = (phase) => grown("slipstream_round_phase_duration_seconds_sum", (labels) => labels.phase === phase);
    const [verify, draft, rest] = [spent("verify"), spent("draft"), spent("host") + spent("schedule")];
    const time = verify + draft + rest;
    const share = (part) => (part === null || !limit ? null : (100 * part) / limit);
    return {
      running: gauge("slipstream_requests_running"),
      waiting: gauge("slipstream_requests_waiting"),
      throughput: now.at > past.at ? grown("slipstream_generated_tokens_total") / (now.at - past.at) : null,
      // Each round delivers the accepted drafts and one token of the target's own; only where an answer ends on a
      // draft it does not. No counter tells how often that was, so short answers read up to one token a round high.
      tau: ratio(spoken("accepted_tokens") + rounds, rounds),
      speedup: ratio(grown("slipstream_speculation_off_seconds_total", drafting), grown("slipstream_speculation_round_seconds_total", drafting)),
      accepted: scaled(ratio(spoken("accepted_tokens"), spoken("draft_tokens"))),
      loosened: scaled(ratio(spoken("loosened_tokens"), grown("slipstream_generated_tokens_total", drafting))),
      firstP50: percentile("gen_ai_server_time_to_first_token_seconds", 0.5),
      firstP95: percentile("gen_ai_server_time_to_first_token_seconds", 0.95),
      wholeP50: percentile("gen_ai_server_request_duration_seconds", 0.5),
      wholeP95: percentile("gen_ai_server_request_duration_seconds", 0.95),
      tokenP50: percentile("gen_ai_server_time_per_output_token_seconds", 0.5),
      tokenP95: percentile("gen_ai_server_time_per_output_token_seconds", 0.95),
      verify: scaled(ratio(verify, time)),
      draft: scaled(ratio(draft, time)),
      rest: scaled(ratio(rest, time)),
      kvUsed: share(used),
      kvCached: share(cached),
    };
  }
}

/** Whether any counter stands lower than it did. */
function fell(before, now) {
  return [...before.keys()].some((name) => name.endsWith("_total") && (total(now, name) ?? 0) < total(before, name));
}

const scaled = (value) => (value === null ? null : 100 * value);
