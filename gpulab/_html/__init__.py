"""The course as pages that open from the disk: each notebook executed, its instruments as still
pictures, no server, no internet.

``gpulab html`` runs the notebooks (``_execute``), turns what they show into plain HTML
(``_outputs``, ``_stills``, ``_microscope``) and writes the pages (``_pages``) through nbconvert
with a template of our own. The pages hold the results of one machine on one day. Each page states
the machine and the date at its head and next to every output with the badge MEASURED, since for the
reader such an output is a recording.
"""
