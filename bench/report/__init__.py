"""Tables for people, from measurements. Measures and judges nothing."""
