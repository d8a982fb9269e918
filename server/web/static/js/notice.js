// Something went wrong, said kindly, and what can be done about it. Nothing that was typed is ever lost.

import { ApiError } from "./api.js";
import { el } from "./dom.js";

const TITLES = {
  0: "No connection",
  502: "No connection",
  504: "No connection",
  401: "This server asks for a key",
  404: "Not found",
  413: "That is too long",
  429: "The server is busy",
  503: "Not ready yet",
};

/** An alert for an ApiError, or for a fault of this page, which is told to the console too; actions: [label, what to do]
 *  pairs. */
export function noticeOf(error, actions = []) {
  if (!(error instanceof ApiError)) console.error(error);
  const title = TITLES[error.status] ?? (error.status === 400 ? "The server declined this request" : "That did not work");
  return el("div", { class: "notice", role: "alert", data: { status: error.status ?? "" } },
    el("div", {},
      el("strong", {}, title),
      el("p", {}, error.message),
      error.param ? el("p", { class: "muted small" }, "Field: ", el("code", {}, error.param)) : null),
    ...actions.map(([label, action]) => el("button", { type: "button", class: "quiet", onclick: action }, label)));
}
