// One streamed chat completion, token by token.

import { ApiError, post } from "./api.js";
import { events } from "./sse.js";

export const blankAnswer = () => ({ content: "", reasoning: "", finish: null, report: null, usage: null });

/**
 * Post `body`, grow `answer` as it comes, and call `onTokens(entries, thought)` with each chunk's tokens.
 * ApiError if it fails, an AbortError if `signal` ends it; `answer` then holds what had come.
 */
export async function complete(body, signal, answer, onTokens) {
  const response = await post("v1/chat/completions", body, signal);
  for await (const data of events(response.body)) {
    if (data === "[DONE]") return;
    take(JSON.parse(data), answer, onTokens);
  }
  throw new ApiError("The connection ended before the answer did.", 0);
}

function take(chunk, answer, onTokens) {
  if (chunk.error) throw new ApiError(chunk.error.message, 500, chunk.error.param ?? null);
  answer.report = chunk.speculation ?? answer.report;
  answer.usage = chunk.usage ?? answer.usage;
  for (const { delta, logprobs, finish_reason: reason } of chunk.choices) {
    answer.content += delta.content ?? "";
    answer.reasoning += delta.reasoning_content ?? "";
    answer.finish = reason ?? answer.finish;
    if (logprobs?.content?.length) onTokens(logprobs.content, delta.reasoning_content !== undefined);
  }
}
