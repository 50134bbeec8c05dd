from .contents import content as content
from .live import serve as serve
from .notes import keep_ensemble as keep_ensemble
from .notes import keep_landscape as keep_landscape
from .notes import keep_spectrum as keep_spectrum
from .page import html as html
from .page import write as write
