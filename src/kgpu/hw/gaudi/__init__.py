"""Intel Gaudi accelerators, by the files of the driver habanalabs and the library libhlml."""
