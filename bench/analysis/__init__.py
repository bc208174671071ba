"""Pure arithmetic over request records: quantiles, goodput, validity, comparison. No I/O."""
