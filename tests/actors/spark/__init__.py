"""Tests of Spark; a package, so that the session they share ends with the last of them."""
