struct sample_broken { 
	no_such_type x;
};
