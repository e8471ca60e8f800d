"""How one optimizer step is carried out on the devices at hand."""
