"""Workloads that nobody wrote: made up at random, judged by the judges of the specs, and made smaller.

`python -m conformance.explore N`, or `pytest conformance/ --explore N` (docs/explorer.md).
"""
