"""Colours of figures: those of Okabe and Ito (2008), which colour-blind readers can tell apart."""

BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"
GREY = "#5F6368"
IN_TURN = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, GREY)
"""For series in the order of a legend."""
