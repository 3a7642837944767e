"""A conformance suite for prefix caching in LLM inference servers, as a pytest plugin."""

__version__ = "0.1.0"
