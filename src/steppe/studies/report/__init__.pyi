from .attached import keep_ensemble as keep_ensemble
from .attached import keep_landscape as keep_landscape
from .attached import keep_spectrum as keep_spectrum
from .contents import content as content
from .live import serve as serve
from .page import html as html
from .page import write as write
