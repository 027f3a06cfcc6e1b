"""Public conformance suites: what a file of a drawer must keep, for ours and for third parties'."""
