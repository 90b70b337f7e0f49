"""The pages: plain functions that make a response of a visit, a file a subject."""
