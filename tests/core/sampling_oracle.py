"""Sampling and evidence written the slow obvious way: one row at a time, Python floats, whole sorts.

Shares no code with core beyond the plain data classes. Float32 enters only where the contract says so:
edited logits are rounded to it once.
"""

import math
import struct
from collections import Counter

MASK = (1 << 64) - 1
FLOAT32_MAX = 3.4028234663852886e38
GOLDEN = 0x9E3779B97F4A7C15


def float32(x):
    try:
        return struct.unpack("f", struct.pack("f", x))[0]
    except OverflowError:
        return math.copysign(math.inf, x)


def mix(x):
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def exponential(bits):
    return -math.log(((bits >> 12) + 0.5) / 2.0**52)


def noise(params, position, token):
    """E(v) of one token."""
    key = mix((params.seed + GOLDEN) & MASK)
    key = mix((key + (params.choice_index + 1) * GOLDEN) & MASK)
    key = mix((key + (position + 1) * GOLDEN) & MASK)
    block = token // 64
    block_bits = mix((mix(key ^ 0xD1B54A32D192ED03) + (block + 1) * GOLDEN) & MASK)
    least, holder = exponential(block_bits) / 64, block * 64 + block_bits % 64
    if token == holder:
        return least
    return least + exponential(mix((key + (token + 1) * GOLDEN) & MASK))


def edited(row, sequence, before):
    """The row after penalties, bias and masks, preceded by the sequence's tokens and the drafts `before`."""
    request, params = sequence.request, sequence.request.sampling
    row = list(row)
    output = Counter(sequence.output) + Counter(before)
    if params.has_penalties:
        seen = set(sequence.tokens) | set(before)
        for token in seen:
            if token < len(row):
                value = row[token]
                value = value / params.repetition_penalty if value > 0 else value * params.repetition_penalty
                if output[token]:
                    value -= params.frequency_penalty * output[token] + params.presence_penalty
                row[token] = float32(min(value, FLOAT32_MAX))
    for token, bias in params.logit_bias.items():
        if token < len(row):
            row[token] = float32(min(row[token] + bias, FLOAT32_MAX))
    if sequence.output_len + len(before) < params.min_tokens:
        for token in request.end_token_ids:
            if token < len(row):
                row[token] = -math.inf
    return row


def scaled(row, temperature):
    top = max(row)
    return [-math.inf if x == -math.inf else (x - top) / temperature for x in row]


def survivors(row, params, temperature):
    """Ids that temperature, top-k, top-p and min-p leave, ranked."""
    z = scaled(row, temperature)
    ids = sorted(range(len(row)), key=lambda v: (-z[v], v))
    if params.top_k:
        ids = ids[: params.top_k]
    if params.top_p < 1.0:
        total = math.fsum(math.exp(z[v]) for v in ids)
        mass, kept = 0.0, []
        for v in ids:
            kept.append(v)
            mass += math.exp(z[v])
            if mass >= params.top_p * total:
                break
        ids = kept
    best = ids[0]
    return [v for v in ids if v == best or not params.min_p or math.exp(z[v] - z[best]) >= params.min_p]


def pick(row, params, position):
    """The chosen token of one edited row."""
    if params.temperature == 0:
        return max(range(len(row)), key=lambda v: (row[v], -v))
    z = scaled(row, params.temperature)
    return max(survivors(row, params, params.temperature), key=lambda v: z[v] - math.log(noise(params, position, v)))


def probabilities(row, params):
    """What the token is drawn from, by id: the full softmax at temperature 0, else the processed distribution."""
    temperature = params.temperature or 1.0
    z = scaled(row, temperature)
    ids = survivors(row, params, temperature) if params.temperature else range(len(row))
    total = math.fsum(math.exp(z[v]) for v in ids)
    return {v: math.exp(z[v]) / total for v in ids}


def entropy(row, params, kind):
    p = sorted(probabilities(row, params).values(), reverse=True)
    if kind == "top3":
        p = p[:3]
    nats = -math.fsum(x * math.log(x) for x in p if x > 0)
    return nats / math.log(len(row)) if kind == "full" else nats


def log_softmax(row):
    top = max(row)
    mass = math.log(math.fsum(math.exp(x - top) for x in row))
    return [x - top - mass for x in row]
