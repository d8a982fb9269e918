// Talking to the server that served this page. Addresses are relative, so it works behind a path prefix too.

import { faultOf, getKey } from "./key.js";

/** Why an answer did not come. status: 0 where the server could not be reached. param: the field at fault, or null. */
export class ApiError extends Error {
  constructor(message, status, param = null) {
    super(message);
    this.status = status;
    this.param = param;
  }
}

/** Statuses that pass by themselves: not reached, a proxy that does not reach it, loading. */
export const AWAY = new Set([0, 502, 503, 504]);

export const isAbort = (error) => error?.name === "AbortError";

/** A response whose status is fine; ApiError otherwise. */
export async function ask(path, options = {}) {
  const headers = { ...options.headers };
  const fault = faultOf(getKey());
  if (fault) throw new ApiError(fault, 401);
  if (getKey()) headers.Authorization = `Bearer ${getKey()}`;
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch (error) {
    throw isAbort(error) ? error : unreachable();
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

export const unreachable = () =>
  new ApiError("The server cannot be reached. Is it running, and are you connected?", 0);

async function refusal(response) {
  let told = {};
  try {
    told = await response.json();
  } catch {
    // Whatever stands between this page and the server may answer in its own words.
  }
  const away = AWAY.has(response.status) && "What stands before the server cannot reach it; it may be starting.";
  const message = told.error?.message ?? told.reason ?? (away || `The server answered with status ${response.status}.`);
  return new ApiError(message, response.status, told.error?.param ?? null);
}

export async function post(path, body, signal) {
  const headers = { "Content-Type": "application/json" };
  return ask(path, { method: "POST", headers, body: JSON.stringify(body), signal });
}
