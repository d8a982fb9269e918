// The small card that tells about one token: one for the whole page, placed beside whichever token is pointed at.

import { el } from "./dom.js";
import { KINDS } from "./provenance.js";
import { quoted } from "./token_text.js";

const card = el("div", { class: "card", id: "token-card", role: "tooltip", hidden: true });
document.body.append(card);
let shownFor = null;

/** unit: what the entry's entropy is measured in. */
export function showCard(token, entry, unit) {
  const kind = KINDS[entry.provenance];
  card.replaceChildren(
    el("p", { class: "card-token" }, quoted(entry.token)),
    el("p", {}, el("span", { class: "sample", data: { provenance: entry.provenance } }, kind.label), ` ${kind.says}`),
    el("dl", {}, ...facts(entry, unit).flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])));
  shownFor?.removeAttribute("aria-describedby");
  token.setAttribute("aria-describedby", card.id);
  shownFor = token;
  card.hidden = false;
  place(token);
}

export function hideCard() {
  shownFor?.removeAttribute("aria-describedby");
  shownFor = null;
  card.hidden = true;
}

/** Scrolled, perhaps by the very focus that shows the card: it goes along as long as its token can be seen. */
function follow() {
  if (!shownFor) return;
  const at = shownFor.getBoundingClientRect();
  const frame = (shownFor.closest(".log") ?? document.documentElement).getBoundingClientRect();
  const [top, bottom] = [Math.max(0, frame.top), Math.min(innerHeight, frame.bottom)];
  if (shownFor.matches(":hover, :focus") && at.bottom > top && at.top < bottom) place(shownFor);
  else hideCard();
}

addEventListener("scroll", follow, { passive: true, capture: true });

/** [name, value] pairs; what was not judged is left out rather than shown as nought. */
function facts({ logprob, verification: seen }, unit) {
  const found = [];
  if (seen) {
    found.push(["draft", seen.draft_token === null ? "none" : quoted(seen.draft_token)]);
    found.push(["target's choice", quoted(seen.target_token)]);
    if (seen.entropy !== null) found.push(["entropy", `${seen.entropy.toFixed(3)} ${unit}`]);
    if (seen.gap !== null) found.push(["logit gap", `${seen.gap.toFixed(3)} (×${Math.exp(seen.gap).toPrecision(2)})`]);
    if (seen.rule !== null) found.push(["rule", seen.rule]);
  }
  found.push(["probability", `${(100 * Math.exp(logprob)).toPrecision(3)} %`]);
  return found;
}

/** Below the token where there is room, else above; never beyond the window's sides. */
function place(token) {
  const at = token.getClientRects()[0] ?? token.getBoundingClientRect();
  const { offsetWidth: width, offsetHeight: height } = card;
  const left = Math.max(8, Math.min(at.left, innerWidth - width - 8));
  const below = at.bottom + 8 + height <= innerHeight;
  card.style.left = `${left}px`;
  card.style.top = `${Math.max(8, below ? at.bottom + 8 : at.top - height - 8)}px`;
}
