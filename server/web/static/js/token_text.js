// Tokens as text: bytes of a character may be spread over several tokens, and then it stands at the last of them.

export class TokenText {
  constructor() {
    this.decoder = new TextDecoder();
  }

  /** What this logprobs entry adds to the text; null for a control token, which is no text. */
  next(entry) {
    return entry.bytes === null ? null : this.decoder.decode(new Uint8Array(entry.bytes), { stream: true });
  }
}

/** A token in quotes, its blanks visible. */
export function quoted(token) {
  return `“${token.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replaceAll(" ", "·")}”`;
}
