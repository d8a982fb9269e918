// Server-sent events from a fetched body, where EventSource cannot be used: it neither posts nor sends a key.

import { isAbort, unreachable } from "./api.js";

/** The data of each event, in order. Comments (pings) are left out. ApiError if the connection is lost. */
export async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    while (true) {
      const { done, value } = await reader.read().catch(lost);
      if (done) return;
      const lines = (rest + value).split(/\r?\n/);
      rest = lines.pop();
      for (const line of lines) if (line.startsWith("data:")) yield line.slice(5).trimStart();
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

function lost(error) {
  throw isAbort(error) ? error : unreachable();
}
