-- What is still to do of an act `a`, and for how many seconds it goes on by now.
a.wanted, a.as_of, a.rate, a.most, a.total, date_part('epoch', clock_timestamp()) - date_part('epoch', b.at) AS age
