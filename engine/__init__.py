"""A compact paged MLX engine: the reference that the conformance suite is proven on."""

__version__ = "0.1.0"
