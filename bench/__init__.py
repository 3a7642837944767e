"""Side-by-side measurements of the bundled engine: ratios of things measured in one run."""
