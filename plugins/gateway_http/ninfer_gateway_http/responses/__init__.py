"""The OpenAI Responses API: ``/v1/responses`` and what belongs to a stored response."""
