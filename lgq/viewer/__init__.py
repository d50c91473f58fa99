"""The page in the browser: look at a tokenizer, edit tokens, study and compare codebooks, watch a generator.

`view.py` is the command, `server.py` what a browser may ask for, `guard.py` what it may not, `studio.py` the
models and pictures behind it, `code_gallery.py` what there is to know about each code, `packets.py` how
arrays travel. `page/` is the page itself: ES modules, CSS and canvas.
"""
