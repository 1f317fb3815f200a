"""What of an installed accelerator driver a container needs, and the CDI edits that bring it there without hooks.

``find.find_driver_files`` looks (with ``model.Search``), ``edits.driver_edits`` makes CDI edits of what was found,
``DriverFiles.report`` says what was found and what is missing, why, and what that breaks. ``drm`` adds a GPU's display
nodes, ``capabilities`` says which file belongs to which of NVIDIA_DRIVER_CAPABILITIES, ``wsl`` and ``tegra`` recognise
those platforms, ``params`` is about /proc/driver/nvidia/params.
"""
