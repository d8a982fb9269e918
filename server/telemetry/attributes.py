"""Names of attributes, by OpenTelemetry's conventions for generative AI and errors; ours begin with slipstream.

The conventions are still in development and have moved to a repository of their own, so the names are spelt out here,
where a change of theirs is one edit, rather than taken from a package's incubating part.
"""

OPERATION_NAME = "gen_ai.operation.name"
PROVIDER_NAME = "gen_ai.provider.name"
REQUEST_MODEL = "gen_ai.request.model"
REQUEST_CHOICES = "gen_ai.request.choice.count"
REQUEST_STREAM = "gen_ai.request.stream"
REQUEST_MAX_TOKENS = "gen_ai.request.max_tokens"
REQUEST_TEMPERATURE = "gen_ai.request.temperature"
REQUEST_TOP_K = "gen_ai.request.top_k"
REQUEST_TOP_P = "gen_ai.request.top_p"
REQUEST_FREQUENCY_PENALTY = "gen_ai.request.frequency_penalty"
REQUEST_PRESENCE_PENALTY = "gen_ai.request.presence_penalty"
RESPONSE_ID = "gen_ai.response.id"
RESPONSE_MODEL = "gen_ai.response.model"
RESPONSE_FINISH_REASONS = "gen_ai.response.finish_reasons"
USAGE_INPUT_TOKENS = "gen_ai.usage.input_tokens"
USAGE_OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
USAGE_CACHED_TOKENS = "gen_ai.usage.cache_read.input_tokens"
ERROR_TYPE = "error.type"

PROVIDER = "slipstream"
CHAT = "chat"
TEXT_COMPLETION = "text_completion"

SPECULATION = "slipstream.speculation"
DRAFT_LIMIT = "slipstream.request.num_draft_tokens"
STRICT_PREFIX = "slipstream.request.strict_prefix"
SEQUENCE = "slipstream.sequence"

METRIC_LABELS = (OPERATION_NAME, PROVIDER_NAME, REQUEST_MODEL)
