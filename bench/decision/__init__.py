"""Keep, retune or isolate: rules as data over the records of measurements. Measures nothing, changes nothing."""
