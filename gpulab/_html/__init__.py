"""The course as pages that open from the disk: each notebook executed, its instruments as still pictures, no server, no internet.

``gpulab html`` runs the notebooks (``_execute``), turns what they show into plain HTML (``_outputs``, ``_stills``, ``_microscope``) and
writes the pages (``_pages``) through nbconvert with a template of our own. The pages hold what one machine gave on one day, so each says
which and when, at its head and beside every output that carries MEASURED: there it was measured, and for the reader it is a recording.
"""
