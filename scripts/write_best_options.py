"""Write lgq/best_options.json from the records of a search: python scripts/write_best_options.py RESULTS"""

import json
import sys
from pathlib import Path

from lgq.experiments.option_search import choose_options
from lgq.experiments.results_directory import ResultsDirectory
from lgq.files import write_file
from lgq.runs import BEST_OPTIONS

if __name__ == "__main__":
    known = json.loads(BEST_OPTIONS.read_text()) if BEST_OPTIONS.is_file() else {}
    chosen = known | choose_options(ResultsDirectory(Path(sys.argv[1])))
    write_file(BEST_OPTIONS, (json.dumps(chosen, indent=2) + "\n").encode())
