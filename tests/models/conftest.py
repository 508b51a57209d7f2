"""Tiny tokenizers of BERT and RoBERTa, and a tiny RoBERTa."""

from pair_tokenizers import bert_data, roberta, wordpieces  # noqa: F401
