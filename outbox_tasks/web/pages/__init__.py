"""A file a page: plain functions that make a response of a visit."""
