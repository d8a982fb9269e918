// The kinds of tokens: where each came from, in words. Their looks stand in style/answer.css.

export const KINDS = {
  native: { label: "native", says: "Drafted, and the target's own choice." },
  bonus: { label: "bonus", says: "The target's choice after a block that was accepted whole." },
  correction: { label: "correction", says: "The target's choice where a draft was rejected." },
  target: { label: "target", says: "The target's choice; nothing had been drafted here." },
  deferred: { label: "deferred", says: "Drafted and loosened by fly: the target was undecided, and the next drafts agreed." },
  calibrated: { label: "calibrated", says: "Drafted and loosened by csd: a known replacement, and the logits nearly tie." },
  lenient: { label: "lenient", says: "Drafted and loosened by lossy: likely enough beside the best token." },
  typical: { label: "typical", says: "Drafted and loosened by typical: likely enough for how undecided the target was." },
};

/** Kinds that are the target's own token at the end of a round. */
export const ENDS_ROUND = new Set(["correction", "bonus", "target"]);
export const LOOSENED = new Set(["deferred", "calibrated", "lenient", "typical"]);

export const VERIFIERS = {
  off: "The target alone, token by token.",
  strict: "Lossless: the very tokens of off, sooner.",
  fly: "Also a draft where the target is undecided and the next drafts agree.",
  csd: "Also a draft that the target is known to replace again and again, where their logits are close.",
  hybrid: "Whatever fly or csd accept.",
  lossy: "Any draft that is likely enough beside the best token: a baseline.",
  typical: "Any draft that is likely enough for how undecided the target is.",
};
