"""Who computes what in the next step: `sequence`, `plan`, `limits`, `scheduler`. No tensors here."""
