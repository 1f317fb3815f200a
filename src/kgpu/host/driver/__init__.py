"""The files of an installed accelerator driver that a container needs, and the CDI edits that mount them without hooks.

``find.find_driver_files`` searches (with ``model.Search``), ``edits.driver_edits`` makes CDI edits of the result, and
``DriverFiles.report`` says what was found and what is missing, why, and what that breaks. ``drm`` adds a GPU's display
nodes, ``capabilities`` maps files to NVIDIA_DRIVER_CAPABILITIES, ``wsl`` and ``tegra`` recognise those platforms, and
``params`` handles /proc/driver/nvidia/params.
"""
