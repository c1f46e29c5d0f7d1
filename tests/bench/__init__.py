"""Benchmarks: ratios against named alternatives, on the same data, in the same run. Not tests."""
