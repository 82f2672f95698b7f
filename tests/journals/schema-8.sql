PRAGMA application_id = 1466322279;
PRAGMA user_version = 8;
BEGIN TRANSACTION;
CREATE TABLE confirmed(
  seq INTEGER PRIMARY KEY,
  body TEXT NOT NULL,
  checksum INTEGER NOT NULL
) STRICT;
INSERT INTO "confirmed" VALUES(6,'[[1,[[5,1795420415201962948,[{"step":[1,"confirmed"]}]]]],[2,[[5,1795420415211030711,[{"step":[1,"confirmed"]}]]]]]',4289745581);
INSERT INTO "confirmed" VALUES(18,'[[4,[[2,1795420415371627347,[{"step":[0,"confirmed"]}]]]]]',1590936606);
INSERT INTO "confirmed" VALUES(38,'[[9,[[2,1795420415517178846,[{"step":[0,"confirmed"]}]]]],[10,[[2,1795420415518516011,[{"step":[0,"confirmed"]}]]]],[11,[[2,1795420415518302003,[{"step":[0,"confirmed"]}]]]],[12,[[2,1795420415518382292,[{"step":[0,"confirmed"]}]]]],[13,[[2,1795420415518560337,[{"step":[0,"confirmed"]}]]]]]',401085815);
INSERT INTO "confirmed" VALUES(42,'[[9,[[5,1795420415537698040,[{"step":[1,"confirmed"]}]]]],[10,[[5,1795420415538308166,[{"step":[1,"confirmed"]}]]]],[11,[[5,1795420415538369127,[{"step":[1,"confirmed"]}]]]]]',194340597);
INSERT INTO "confirmed" VALUES(53,'[[14,[[6,1795420415566345182,[{"step":[1,"confirmed"]}]]]]]',2112486535);
INSERT INTO "confirmed" VALUES(63,'[[16,[[13,1795420415664042172,[{"step":[2,"confirmed"]}]]]],[17,[[3,1795420415665368712,[{"step":[0,"confirmed"]}]]]]]',550391961);
INSERT INTO "confirmed" VALUES(66,'[[19,[[3,1795420415685931471,[{"step":[0,"confirmed"]}]]]]]',1144908585);
CREATE TABLE definitions(
  number INTEGER PRIMARY KEY,
  hash BLOB NOT NULL UNIQUE,
  body TEXT NOT NULL
) STRICT;
INSERT INTO "definitions" VALUES(1,X'EE0FD1E524B1D28B3D3C9158E12C4A686B1CC9742E905A4153832096BA79701A','{"name":"chain","graphs":[{"name":"chain","steps":[{"name":"a","queue":"a"},{"name":"b","queue":"b","depends":[{"step":0}]},{"name":"c","queue":"c","depends":[{"step":1}]}]}]}');
INSERT INTO "definitions" VALUES(2,X'9D2F9FE0179AE5BB0EBAF4148F8255042F1A56B4E5F7112E938136BB78F3C1A1','{"name":"gather","graphs":[{"name":"gather","steps":[{"name":"split","queue":"split"},{"name":"items","queue":"items","depends":[{"step":0}],"task":1},{"name":"join","queue":"join","depends":[{"step":1},{"step":0}]}]},{"name":"item","fan_out":{"list_key":"sections","item_key":"section"},"steps":[{"name":"weigh","queue":"weigh"},{"name":"mark","queue":"mark","depends":[{"step":0}]}]}]}');
INSERT INTO "definitions" VALUES(3,X'CE28566515E3F3F6D49F128A7962CCC3F229B9D0F466721051B38139E6DB0BD9','{"name":"patient","deadline":315360000000,"graphs":[{"name":"patient","steps":[{"name":"late","queue":"late","timeout":311040000000,"retry":{"attempts":3,"backoff":259200000000,"factor_milli":2000,"max_backoff":259200000000}},{"name":"never","queue":"never","when":"input.never == true"},{"name":"last","queue":"last","depends":[{"step":0},{"step":1}]}]}]}');
INSERT INTO "definitions" VALUES(4,X'7F0B9811F22FD122D2F09CA2E39BA63FA3B3E2AC297FFD881F3B34921F343CE9','{"name":"person","graphs":[{"name":"person","steps":[{"name":"review","queue":"review","external":true,"status":{"words":["OPEN","APPROVED","REFUSED"]}},{"name":"tell","queue":"tell","depends":[{"step":0}]}]}]}');
CREATE TABLE derived(upto INTEGER NOT NULL) STRICT;
INSERT INTO "derived" VALUES(66);
CREATE TABLE entries(
  seq INTEGER PRIMARY KEY,
  job INTEGER NOT NULL,
  first INTEGER NOT NULL,
  at INTEGER NOT NULL,
  body TEXT NOT NULL,
  checksum INTEGER NOT NULL
, confirms TEXT, origin TEXT) STRICT;
INSERT INTO "entries" VALUES(1,1,0,1795420415154744833,'[{"job":{"created":{"message":{"n":1,"large":12345678901234567890}}}},{"step":[0,{"started":{"attempt":1}}]}]',1226201862,NULL,'["00000000-0000-4000-8000-000000000001",1,0,1,null,null,null,0,1795420415154599243]');
INSERT INTO "entries" VALUES(2,2,0,1795420415185736181,'[{"job":{"created":{"message":{"n":2}}}},{"step":[0,{"started":{"attempt":1}}]}]',1249655607,NULL,'["00000000-0000-4000-8000-000000000002",1,0,2,null,null,null,0,1795420415185621792]');
INSERT INTO "entries" VALUES(4,1,3,1795420415188806430,'[{"step":[0,{"completed":{"n":1.1}}]},{"step":[1,{"started":{"attempt":1}}]}]',1889730640,'[[2,1795420415174111617,[{"step":[0,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(5,2,3,1795420415200881943,'[{"step":[0,{"completed":{"n":2}}]},{"step":[1,{"started":{"attempt":1}}]}]',1272340080,'[[2,1795420415199317370,[{"step":[0,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(7,2,6,1795420415224704071,'[{"step":[1,{"completed":{"n":2}}]},{"step":[2,{"started":{"attempt":1}}]}]',2135477259,'[[5,1795420415211030711,[{"step":[1,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(8,2,9,1795420415246760118,'[{"step":[2,{"completed":{"sum":6}}]},{"job":"completed"}]',704256024,'[[8,1795420415229855459,[{"step":[2,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(9,3,0,1795420415283376562,'[{"job":{"created":{"message":{"n":3}}}},{"step":[0,{"started":{"attempt":1}}]}]',3707632460,NULL,'["00000000-0000-4000-8000-000000000003",1,0,3,null,null,null,0,1795420415283282267]');
INSERT INTO "entries" VALUES(10,3,3,1795420415293400234,'[{"step":[0,{"completed":{"n":3}}]},{"step":[1,{"started":{"attempt":1}}]}]',401722965,'[[2,1795420415292097630,[{"step":[0,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(12,3,6,1795420415316102219,'[{"step":[1,{"completed":{"n":3}}]},{"step":[2,{"started":{"attempt":1}}]}]',1245980063,'[[5,1795420415304083836,[{"step":[1,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(14,3,9,1795420415338039659,'[{"step":[2,{"failed":{"reason":"the worker reported an error: no"}}]},{"job":{"failed":{"reason":"step \"c\": the worker reported an error: no","step":2}}}]',2034246191,'[[8,1795420415324066884,[{"step":[2,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(15,4,0,1795420415362979788,'[{"job":{"created":{"message":{"n":4}}}},{"step":[0,{"started":{"attempt":1}}]}]',683550062,NULL,'["00000000-0000-4000-8000-000000000004",1,0,4,null,null,null,0,1795420415362867516]');
INSERT INTO "entries" VALUES(16,5,0,1795420415370471711,'[{"job":{"created":{"message":{}}}},{"step":[0,{"started":{"attempt":1}}]}]',2622717346,NULL,'["00000000-0000-4000-8000-000000000011",2,0,5,null,null,null,0,1795420415370376104]');
INSERT INTO "entries" VALUES(17,5,3,1795420415375028456,'[{"step":[0,{"completed":{"sections":["x", "y"],"title":"t"}}]},{"fan_out":[1,{"started":{"items":2}}]},{"fan_out":[1,{"children_started":{"from":0,"count":2}}]}]',60325239,'[[2,1795420415374780068,[{"step":[0,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(19,6,0,1795420415376168108,'[{"job":{"created":{}}},{"step":[0,{"started":{"attempt":1}}]}]',2831866719,NULL,'["212c224d-8eb9-88fd-9ccb-ed7100000000",2,1,5,5,1,0,1,1795420415376004050]');
INSERT INTO "entries" VALUES(20,7,0,1795420415376288427,'[{"job":{"created":{}}},{"step":[0,{"started":{"attempt":1}}]}]',2958689034,NULL,'["212c224d-8eb9-88fd-9ccb-ed7100000001",2,1,5,5,1,1,1,1795420415376056959]');
INSERT INTO "entries" VALUES(22,6,3,1795420415397531126,'[{"step":[0,{"completed":{"section":{"kg": 1}}}]},{"step":[1,{"started":{"attempt":1}}]}]',3104306426,'[[2,1795420415386178591,[{"step":[0,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(24,6,6,1795420415419133158,'[{"step":[1,{"completed":{"section":{"kg": 1, "good": true}}}]},{"job":"completed"}]',1837497166,'[[5,1795420415405812070,[{"step":[1,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(25,7,3,1795420415423469346,'[{"step":[0,{"completed":{"section":{"kg": 1}}}]},{"step":[1,{"started":{"attempt":1}}]}]',855540198,'[[2,1795420415386035218,[{"step":[0,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(26,5,6,1795420415423664346,'[{"fan_out":[1,{"child_completed":{"index":0,"item":[0,{"kg": 1, "good": true}]}}]}]',1685892595,NULL,NULL);
INSERT INTO "entries" VALUES(27,7,6,1795420415445297674,'[{"step":[1,{"completed":{"section":{"kg": 1, "good": true}}}]},{"job":"completed"}]',1459496709,'[[5,1795420415438081110,[{"step":[1,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(28,5,7,1795420415451755021,'[{"fan_out":[1,{"child_completed":{"index":1,"item":[0,{"kg": 1, "good": true}]}}]},{"fan_out":[1,"completed"]},{"step":[2,{"started":{"attempt":1}}]}]',1930547241,NULL,NULL);
INSERT INTO "entries" VALUES(30,5,11,1795420415467118822,'[{"step":[2,{"completed":{"kg":2}}]},{"job":"completed"}]',2278049189,'[[10,1795420415456456051,[{"step":[2,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(31,8,0,1795420415491596464,'[{"job":{"created":{"message":{"from":"a client"}}}},{"step":[0,{"started":{"attempt":1}}]}]',51208864,NULL,'["00000000-0000-4000-8000-000000000010",2,0,8,null,null,null,0,1795420415491519905]');
INSERT INTO "entries" VALUES(32,8,3,1795420415502837143,'[{"step":[0,{"completed":{"sections":[1, 2, 3, 4, 5],"title":"t"}}]},{"fan_out":[1,{"started":{"items":5}}]},{"fan_out":[1,{"children_started":{"from":0,"count":5}}]}]',1710027441,'[[2,1795420415501914042,[{"step":[0,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(33,9,0,1795420415512022340,'[{"job":{"created":{}}},{"step":[0,{"started":{"attempt":1}}]}]',4038984539,NULL,'["df6bfa5d-b653-8e1f-90be-96a300000000",2,1,8,8,1,0,1,1795420415511881706]');
INSERT INTO "entries" VALUES(34,10,0,1795420415512627358,'[{"job":{"created":{}}},{"step":[0,{"started":{"attempt":1}}]}]',426195556,NULL,'["df6bfa5d-b653-8e1f-90be-96a300000001",2,1,8,8,1,1,1,1795420415511920474]');
INSERT INTO "entries" VALUES(35,11,0,1795420415512770991,'[{"job":{"created":{}}},{"step":[0,{"started":{"attempt":1}}]}]',1423019815,NULL,'["df6bfa5d-b653-8e1f-90be-96a300000002",2,1,8,8,1,2,1,1795420415511925892]');
INSERT INTO "entries" VALUES(36,12,0,1795420415512804191,'[{"job":{"created":{}}},{"step":[0,{"started":{"attempt":1}}]}]',3387754417,NULL,'["df6bfa5d-b653-8e1f-90be-96a300000003",2,1,8,8,1,3,1,1795420415511929157]');
INSERT INTO "entries" VALUES(37,13,0,1795420415512828346,'[{"job":{"created":{}}},{"step":[0,{"started":{"attempt":1}}]}]',3059562724,NULL,'["df6bfa5d-b653-8e1f-90be-96a300000004",2,1,8,8,1,4,1,1795420415511932001]');
INSERT INTO "entries" VALUES(39,9,3,1795420415527465458,'[{"step":[0,{"completed":{"section":{"kg": 2}}}]},{"step":[1,{"started":{"attempt":1}}]}]',4155720871,'[[2,1795420415517178846,[{"step":[0,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(40,10,3,1795420415528237875,'[{"step":[0,{"completed":{"section":{"kg": 2}}}]},{"step":[1,{"started":{"attempt":1}}]}]',3420914655,'[[2,1795420415518516011,[{"step":[0,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(41,11,3,1795420415528347808,'[{"step":[0,{"completed":{"section":{"kg": 2}}}]},{"step":[1,{"started":{"attempt":1}}]}]',1946549974,'[[2,1795420415518302003,[{"step":[0,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(43,9,6,1795420415548520388,'[{"step":[1,{"completed":{"section":{"kg": 2, "good": true}}}]},{"job":"completed"}]',2806921941,'[[5,1795420415537698040,[{"step":[1,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(44,10,6,1795420415548696399,'[{"step":[1,{"completed":{"section":{"kg": 2, "good": true}}}]},{"job":"completed"}]',1583019198,'[[5,1795420415538308166,[{"step":[1,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(45,14,0,1795420415551829381,'[{"job":{"created":{"message":{"n":5}}}},{"step":[0,{"started":{"attempt":1}}]}]',637329630,NULL,'["00000000-0000-4000-8000-000000000005",1,0,14,null,null,null,0,1795420415548763504]');
INSERT INTO "entries" VALUES(46,8,6,1795420415552536010,'[{"fan_out":[1,{"child_completed":{"index":0,"item":[0,{"kg": 2, "good": true}]}}]}]',2340933903,NULL,NULL);
INSERT INTO "entries" VALUES(47,8,7,1795420415553097824,'[{"fan_out":[1,{"child_completed":{"index":1,"item":[0,{"kg": 2, "good": true}]}}]}]',1104535398,NULL,NULL);
INSERT INTO "entries" VALUES(49,14,3,1795420415559157280,'[{"step":[0,{"completed":{"n":5}}]},{"step":[1,{"started":{"attempt":1}}]}]',2317453480,'[[2,1795420415557813716,[{"step":[0,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(50,14,5,1795420415559553038,'[{"job":"paused"}]',1897685165,NULL,NULL);
INSERT INTO "entries" VALUES(51,15,0,1795420415565219020,'[{"job":{"created":{"message":{"n":6}}}},{"step":[0,{"started":{"attempt":1}}]}]',235091674,NULL,'["00000000-0000-4000-8000-000000000006",1,0,15,null,null,null,0,1795420415565148841]');
INSERT INTO "entries" VALUES(52,15,2,1795420415569035046,'[{"job":{"cancelled":{"reason":"by a call of the API"}}}]',959531414,NULL,NULL);
INSERT INTO "entries" VALUES(54,15,3,1795420415569838459,'[{"step":[0,"confirmed"]}]',802491725,NULL,NULL);
INSERT INTO "entries" VALUES(55,16,0,1795420415572768749,'[{"job":{"created":{"message":{"n":7}}}},{"step":[0,{"started":{"attempt":1}}]}]',2818041460,NULL,'["00000000-0000-4000-8000-000000000007",1,0,16,null,null,null,0,1795420415572700754]');
INSERT INTO "entries" VALUES(56,16,3,1795420415581165125,'[{"step":[0,{"completed":{"n":7}}]},{"step":[1,{"started":{"attempt":1}}]}]',3869480671,'[[2,1795420415579514905,[{"step":[0,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(58,16,6,1795420415603772991,'[{"step":[1,{"completed":{"n":7}}]},{"step":[2,{"started":{"attempt":1}}]}]',3192640044,'[[5,1795420415585124063,[{"step":[1,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(59,16,9,1795420415625739384,'[{"step":[2,{"failed":{"reason":"the worker reported an error: not yet"}}]},{"job":{"failed":{"reason":"step \"c\": the worker reported an error: not yet","step":2}}}]',2138303234,'[[8,1795420415607951194,[{"step":[2,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(60,16,11,1795420415656948570,'[{"job":{"retried":{"round":1}}},{"step":[2,{"started":{"attempt":2}}]}]',1899875178,NULL,NULL);
INSERT INTO "entries" VALUES(61,17,0,1795420415661431636,'[{"job":{"created":{"message":{"never":false},"deadline":2110780415661431636}}},{"step":[0,{"started":{"attempt":1,"deadline":2106460415661431636}}]},{"step":[1,"skipped"]}]',1136963692,NULL,'["00000000-0000-4000-8000-000000000008",3,0,17,null,null,null,0,1795420415661355539]');
INSERT INTO "entries" VALUES(62,18,0,1795420415665819621,'[{"job":{"created":{"message":{"for":"a person"}}}},{"step":[0,{"started":{"attempt":1}}]}]',2506054494,NULL,'["00000000-0000-4000-8000-000000000009",4,0,18,null,null,null,0,1795420415665761280]');
INSERT INTO "entries" VALUES(64,17,4,1795420415667167712,'[{"step":[0,{"attempt_failed":{"attempt":1,"failure":{"reason":"the worker reported an error: try again"},"retry_at":1977961342642421886}}]}]',2134976104,'[[3,1795420415665368712,[{"step":[0,"confirmed"]}]]]',NULL);
INSERT INTO "entries" VALUES(65,19,0,1795420415679231584,'[{"job":{"created":{"message":{"n":12}}}},{"caller":{"joined":{"reply_to":"answers","bus":"amqp","correlation_id":"mine"}}},{"step":[0,{"started":{"attempt":1}}]}]',2681773617,NULL,'["00000000-0000-4000-8000-000000000012",1,0,19,null,null,null,0,1795420415679140734]');
CREATE TABLE jobs(
  number INTEGER PRIMARY KEY,
  id BLOB NOT NULL,
  workflow TEXT NOT NULL,
  definition INTEGER NOT NULL REFERENCES definitions(number),
  graph INTEGER NOT NULL,
  root INTEGER NOT NULL,
  parent INTEGER,
  step INTEGER,
  item INTEGER,
  depth INTEGER NOT NULL,
  created INTEGER NOT NULL,
  state TEXT NOT NULL,
  ended INTEGER,
  open INTEGER NOT NULL,
  checksum INTEGER NOT NULL
) STRICT;
INSERT INTO "jobs" VALUES(1,X'00000000000040008000000000000001','chain',1,0,1,NULL,NULL,NULL,0,1795420415154599243,'running',NULL,1,780841802);
INSERT INTO "jobs" VALUES(2,X'00000000000040008000000000000002','chain',1,0,2,NULL,NULL,NULL,0,1795420415185621792,'completed',1795420415246760118,0,2401919142);
INSERT INTO "jobs" VALUES(3,X'00000000000040008000000000000003','chain',1,0,3,NULL,NULL,NULL,0,1795420415283282267,'failed',1795420415338039659,0,1028796971);
INSERT INTO "jobs" VALUES(4,X'00000000000040008000000000000004','chain',1,0,4,NULL,NULL,NULL,0,1795420415362867516,'running',NULL,1,3520719959);
INSERT INTO "jobs" VALUES(5,X'00000000000040008000000000000011','gather',2,0,5,NULL,NULL,NULL,0,1795420415370376104,'completed',1795420415467118822,0,1767742890);
INSERT INTO "jobs" VALUES(6,X'212C224D8EB988FD9CCBED7100000000','gather',2,1,5,5,1,0,1,1795420415376004050,'completed',1795420415419133158,0,3235850150);
INSERT INTO "jobs" VALUES(7,X'212C224D8EB988FD9CCBED7100000001','gather',2,1,5,5,1,1,1,1795420415376056959,'completed',1795420415445297674,0,538992014);
INSERT INTO "jobs" VALUES(8,X'00000000000040008000000000000010','gather',2,0,8,NULL,NULL,NULL,0,1795420415491519905,'running',NULL,1,35988019);
INSERT INTO "jobs" VALUES(9,X'DF6BFA5DB6538E1F90BE96A300000000','gather',2,1,8,8,1,0,1,1795420415511881706,'completed',1795420415548520388,0,3060318379);
INSERT INTO "jobs" VALUES(10,X'DF6BFA5DB6538E1F90BE96A300000001','gather',2,1,8,8,1,1,1,1795420415511920474,'completed',1795420415548696399,0,1705547565);
INSERT INTO "jobs" VALUES(11,X'DF6BFA5DB6538E1F90BE96A300000002','gather',2,1,8,8,1,2,1,1795420415511925892,'running',NULL,1,1118312705);
INSERT INTO "jobs" VALUES(12,X'DF6BFA5DB6538E1F90BE96A300000003','gather',2,1,8,8,1,3,1,1795420415511929157,'running',NULL,1,2227460890);
INSERT INTO "jobs" VALUES(13,X'DF6BFA5DB6538E1F90BE96A300000004','gather',2,1,8,8,1,4,1,1795420415511932001,'running',NULL,1,2915740796);
INSERT INTO "jobs" VALUES(14,X'00000000000040008000000000000005','chain',1,0,14,NULL,NULL,NULL,0,1795420415548763504,'paused',NULL,1,1241845420);
INSERT INTO "jobs" VALUES(15,X'00000000000040008000000000000006','chain',1,0,15,NULL,NULL,NULL,0,1795420415565148841,'cancelled',1795420415569035046,0,2328305680);
INSERT INTO "jobs" VALUES(16,X'00000000000040008000000000000007','chain',1,0,16,NULL,NULL,NULL,0,1795420415572700754,'running',NULL,1,1397379580);
INSERT INTO "jobs" VALUES(17,X'00000000000040008000000000000008','patient',3,0,17,NULL,NULL,NULL,0,1795420415661355539,'running',NULL,1,276733140);
INSERT INTO "jobs" VALUES(18,X'00000000000040008000000000000009','person',4,0,18,NULL,NULL,NULL,0,1795420415665761280,'running',NULL,1,1509309396);
INSERT INTO "jobs" VALUES(19,X'00000000000040008000000000000012','chain',1,0,19,NULL,NULL,NULL,0,1795420415679140734,'running',NULL,1,2003971367);
CREATE TABLE notices(
  number INTEGER PRIMARY KEY AUTOINCREMENT,
  at INTEGER NOT NULL,
  body TEXT NOT NULL,
  checksum INTEGER NOT NULL
) STRICT;
CREATE TABLE places(
  job INTEGER NOT NULL,
  first INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  PRIMARY KEY(job, first)
) WITHOUT ROWID, STRICT;
INSERT INTO "places" VALUES(1,0,1);
INSERT INTO "places" VALUES(1,3,4);
INSERT INTO "places" VALUES(2,0,2);
INSERT INTO "places" VALUES(2,3,5);
INSERT INTO "places" VALUES(2,6,7);
INSERT INTO "places" VALUES(2,9,8);
INSERT INTO "places" VALUES(3,0,9);
INSERT INTO "places" VALUES(3,3,10);
INSERT INTO "places" VALUES(3,6,12);
INSERT INTO "places" VALUES(3,9,14);
INSERT INTO "places" VALUES(4,0,15);
INSERT INTO "places" VALUES(5,0,16);
INSERT INTO "places" VALUES(5,3,17);
INSERT INTO "places" VALUES(5,6,26);
INSERT INTO "places" VALUES(5,7,28);
INSERT INTO "places" VALUES(5,11,30);
INSERT INTO "places" VALUES(6,0,19);
INSERT INTO "places" VALUES(6,3,22);
INSERT INTO "places" VALUES(6,6,24);
INSERT INTO "places" VALUES(7,0,20);
INSERT INTO "places" VALUES(7,3,25);
INSERT INTO "places" VALUES(7,6,27);
INSERT INTO "places" VALUES(8,0,31);
INSERT INTO "places" VALUES(8,3,32);
INSERT INTO "places" VALUES(8,6,46);
INSERT INTO "places" VALUES(8,7,47);
INSERT INTO "places" VALUES(9,0,33);
INSERT INTO "places" VALUES(9,3,39);
INSERT INTO "places" VALUES(9,6,43);
INSERT INTO "places" VALUES(10,0,34);
INSERT INTO "places" VALUES(10,3,40);
INSERT INTO "places" VALUES(10,6,44);
INSERT INTO "places" VALUES(11,0,35);
INSERT INTO "places" VALUES(11,3,41);
INSERT INTO "places" VALUES(12,0,36);
INSERT INTO "places" VALUES(13,0,37);
INSERT INTO "places" VALUES(14,0,45);
INSERT INTO "places" VALUES(14,3,49);
INSERT INTO "places" VALUES(14,5,50);
INSERT INTO "places" VALUES(15,0,51);
INSERT INTO "places" VALUES(15,2,52);
INSERT INTO "places" VALUES(15,3,54);
INSERT INTO "places" VALUES(16,0,55);
INSERT INTO "places" VALUES(16,3,56);
INSERT INTO "places" VALUES(16,6,58);
INSERT INTO "places" VALUES(16,9,59);
INSERT INTO "places" VALUES(16,11,60);
INSERT INTO "places" VALUES(17,0,61);
INSERT INTO "places" VALUES(17,4,64);
INSERT INTO "places" VALUES(18,0,62);
INSERT INTO "places" VALUES(19,0,65);
CREATE TABLE "status_chain"(job TEXT NOT NULL, state TEXT NOT NULL, created TEXT NOT NULL, updated TEXT NOT NULL, "a" TEXT NOT NULL DEFAULT '', "b" TEXT NOT NULL DEFAULT '', "c" TEXT NOT NULL DEFAULT '') STRICT;
INSERT INTO "status_chain" VALUES('00000000-0000-4000-8000-000000000001','running','2026-11-23T07:53:35.154Z','2026-11-23T07:53:35.188Z','COMPLETED','PENDING','');
INSERT INTO "status_chain" VALUES('00000000-0000-4000-8000-000000000002','completed','2026-11-23T07:53:35.185Z','2026-11-23T07:53:35.246Z','COMPLETED','COMPLETED','COMPLETED');
INSERT INTO "status_chain" VALUES('00000000-0000-4000-8000-000000000003','failed','2026-11-23T07:53:35.283Z','2026-11-23T07:53:35.338Z','COMPLETED','COMPLETED','FAILED');
INSERT INTO "status_chain" VALUES('00000000-0000-4000-8000-000000000004','running','2026-11-23T07:53:35.362Z','2026-11-23T07:53:35.362Z','PENDING','','');
INSERT INTO "status_chain" VALUES('00000000-0000-4000-8000-000000000005','paused','2026-11-23T07:53:35.548Z','2026-11-23T07:53:35.559Z','COMPLETED','PENDING','');
INSERT INTO "status_chain" VALUES('00000000-0000-4000-8000-000000000006','cancelled','2026-11-23T07:53:35.565Z','2026-11-23T07:53:35.569Z','CANCELLED','','');
INSERT INTO "status_chain" VALUES('00000000-0000-4000-8000-000000000007','running','2026-11-23T07:53:35.572Z','2026-11-23T07:53:35.656Z','COMPLETED','COMPLETED','PENDING');
INSERT INTO "status_chain" VALUES('00000000-0000-4000-8000-000000000012','running','2026-11-23T07:53:35.679Z','2026-11-23T07:53:35.679Z','PENDING','','');
CREATE TABLE "status_gather"(job TEXT NOT NULL, state TEXT NOT NULL, created TEXT NOT NULL, updated TEXT NOT NULL, "split" TEXT NOT NULL DEFAULT '', "items" TEXT NOT NULL DEFAULT '', "join" TEXT NOT NULL DEFAULT '') STRICT;
INSERT INTO "status_gather" VALUES('00000000-0000-4000-8000-000000000011','completed','2026-11-23T07:53:35.370Z','2026-11-23T07:53:35.467Z','COMPLETED','COMPLETED','COMPLETED');
INSERT INTO "status_gather" VALUES('00000000-0000-4000-8000-000000000010','running','2026-11-23T07:53:35.491Z','2026-11-23T07:53:35.502Z','COMPLETED','PENDING','');
CREATE TABLE "status_patient"(job TEXT NOT NULL, state TEXT NOT NULL, created TEXT NOT NULL, updated TEXT NOT NULL, "late" TEXT NOT NULL DEFAULT '', "never" TEXT NOT NULL DEFAULT '', "last" TEXT NOT NULL DEFAULT '') STRICT;
INSERT INTO "status_patient" VALUES('00000000-0000-4000-8000-000000000008','running','2026-11-23T07:53:35.661Z','2026-11-23T07:53:35.661Z','PENDING','SKIPPED','');
CREATE TABLE "status_person"(job TEXT NOT NULL, state TEXT NOT NULL, created TEXT NOT NULL, updated TEXT NOT NULL, "review" TEXT NOT NULL DEFAULT '', "tell" TEXT NOT NULL DEFAULT '') STRICT;
INSERT INTO "status_person" VALUES('00000000-0000-4000-8000-000000000009','running','2026-11-23T07:53:35.665Z','2026-11-23T07:53:35.665Z','OPEN','');
CREATE INDEX jobs_by_id ON jobs(id);
CREATE INDEX jobs_by_place ON jobs(root, parent, step, item);
CREATE INDEX jobs_open ON jobs(number) WHERE open = 1;
CREATE INDEX jobs_running ON jobs(workflow, number) WHERE parent IS NULL AND ended IS NULL;
CREATE INDEX jobs_ended ON jobs(workflow, ended) WHERE parent IS NULL AND ended IS NOT NULL;
CREATE INDEX jobs_top ON jobs(number) WHERE parent IS NULL;
CREATE INDEX jobs_by_state ON jobs(workflow, state, number) WHERE parent IS NULL;
CREATE INDEX jobs_retained ON jobs(definition, ended) WHERE parent IS NULL AND ended IS NOT NULL;
CREATE INDEX jobs_children_failed ON jobs(parent, state, step, item) WHERE parent IS NOT NULL AND state IN ('failed', 'cancelled');
CREATE INDEX jobs_top_by_state ON jobs(state, number) WHERE parent IS NULL;
CREATE UNIQUE INDEX "index job of chain" ON "status_chain"("job");
CREATE INDEX "index state of chain" ON "status_chain"("state");
CREATE INDEX "index a of chain" ON "status_chain"("a");
CREATE INDEX "index b of chain" ON "status_chain"("b");
CREATE INDEX "index c of chain" ON "status_chain"("c");
CREATE UNIQUE INDEX "index job of gather" ON "status_gather"("job");
CREATE INDEX "index state of gather" ON "status_gather"("state");
CREATE INDEX "index split of gather" ON "status_gather"("split");
CREATE INDEX "index items of gather" ON "status_gather"("items");
CREATE INDEX "index join of gather" ON "status_gather"("join");
CREATE UNIQUE INDEX "index job of patient" ON "status_patient"("job");
CREATE INDEX "index state of patient" ON "status_patient"("state");
CREATE INDEX "index late of patient" ON "status_patient"("late");
CREATE INDEX "index never of patient" ON "status_patient"("never");
CREATE INDEX "index last of patient" ON "status_patient"("last");
CREATE UNIQUE INDEX "index job of person" ON "status_person"("job");
CREATE INDEX "index state of person" ON "status_person"("state");
CREATE INDEX "index review of person" ON "status_person"("review");
CREATE INDEX "index tell of person" ON "status_person"("tell");
DELETE FROM "sqlite_sequence";
COMMIT;
