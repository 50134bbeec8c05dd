from .measures import check_measure as check_measure
