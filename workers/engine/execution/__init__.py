"""A plan becomes tensors and tokens: `packing`, `runner`. No decisions here."""
